"""From a command line to an exit code: Hydra composes, jobs are done here or in processes of their own, a failure is one line.

Exit codes: 0 ok; 1 a run failed, diverged or is unhealthy; 2 refused before any work; 130 and 143 interrupted.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from statewise import attempts, schemas
from statewise.config import CONFIG_ERRORS, config_groups, explain
from statewise.config import FULL_ERROR as FULL_ERROR
from statewise.folders import new_folder
from statewise.interrupts import Interrupted, ask_before_stopping
from statewise.jobs import Job as Job
from statewise.jobs import Jobs
from statewise.jobs import Refused as Refused
from statewise.jobs import RunFailed as RunFailed
from statewise.sweeps import going_on, plugins
from statewise.sweeps.launchers import JobFailed
from statewise.sweeps.processes import end_with_the_sweep
from statewise.sweeps.sweeping import Sweeping

if TYPE_CHECKING:
    from statewise.sweeps.sweep import Sweep

MULTIRUN = {"-m", "--multirun"}
TAKE_A_VALUE = {"--cfg", "-c", "--package", "-p", "--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"}


def launch(run: Callable[[DictConfig, Job], float], argv: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code.

    Args:
        run: does one job in its run folder and returns the objective; it sets the job's status.
        argv: the arguments after the program's name; those of this process by default.
    """
    end_with_the_sweep()
    typed = options_first(sys.argv[1:] if argv is None else argv)
    show_traceback = bool(os.environ.get(FULL_ERROR))
    schemas.register()
    OmegaConf.register_new_resolver("new_folder", new_folder, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("config_groups", config_groups, replace=True)
    sweeping = Sweeping(typed)
    plugins.register(sweeping)
    jobs = Jobs(run, sweeping, show_traceback=show_traceback)
    stopped: int | None = None  # the exit code, where the command did not come to its own end

    @hydra.main(version_base="1.3", config_path="pkg://statewise.conf", config_name="train")
    def train(config: DictConfig) -> float:
        return jobs.do(config, typed)

    try:
        with ask_before_stopping(lambda name: False):
            typed = _next_attempt(typed)
            _refuse_taken_folder(typed)
            arguments = _with_parents_overrides(_with_sweeps_overrides(typed))
            with _command_line(arguments), _root_logger_as_it_was():
                train()
    except attempts.Complete as complete:
        sys.stdout.write(f"{complete}\n")
        return 0
    except Interrupted as interrupted:
        _say(str(interrupted))
        stopped = interrupted.exit_code
    except KeyboardInterrupt:
        _say("interrupted before the run began")
        stopped = 130
    except SystemExit as end:  # --help, --cfg, and argparse's usage errors
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 2
    except (Refused, RunFailed, JobFailed) as failure:
        if not jobs.done and sweeping.sweep is None:
            _say(str(failure))
            stopped = 2 if isinstance(failure, Refused) else 1
    except (OSError, *CONFIG_ERRORS) as error:
        if show_traceback:
            traceback.print_exc()
        _say(_unwritable(error) or explain(error, typed))
        stopped = 2
    except ValueError as error:  # what a sweeper says of a sweep that cannot be done
        _say(str(error))
        stopped = 2
    if sweeping.sweep is not None:
        return _end_of(sweeping.sweep, stopped)
    return max((job.exit_code for job in jobs.done), default=0) if stopped is None else stopped


def _end_of(sweep: "Sweep", stopped: int | None) -> int:
    """Say what came of a sweep, also of one that was stopped, and return the exit code."""
    with closing(sweep), suppress(FileNotFoundError):  # no job has begun
        sweep.conclude()
    if (sweep.records or stopped != 2) and (go_on := sweep.how_to_go_on()):
        _say(go_on)
    return sweep.exit_code if stopped is None else stopped


def options_first(arguments: Sequence[str]) -> list[str]:
    """The same command line as argparse wants it: overrides that stand between options it does not understand."""
    options: list[str] = []
    overrides: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        (options if argument.startswith("-") else overrides).append(argument)
        if argument in TAKE_A_VALUE:
            options += [value for value in [next(rest, None)] if value is not None]
    return options + overrides


def _next_attempt(typed: list[str]) -> list[str]:
    if not attempts.wanted(typed):
        return typed
    if MULTIRUN & set(typed):
        raise Refused("resume=auto continues one run; a sweep is continued with sweep.resume=FOLDER")
    try:
        arguments, line = attempts.next_attempt(typed, Path.cwd())
    except (ValueError, OSError) as error:
        raise Refused(str(error)) from error
    sys.stdout.write(f"{line}\n")
    return arguments


def _with_sweeps_overrides(typed: list[str]) -> list[str]:
    if not any(argument.startswith(f"{going_on.KEY}=") for argument in typed):
        return typed
    try:
        return options_first(going_on.with_sweeps_overrides(typed, Path.cwd()))
    except OSError as error:
        raise Refused(str(error)) from error


def _with_parents_overrides(typed: list[str]) -> list[str]:
    if not any(argument.startswith("resume=") for argument in typed):
        return typed
    from statewise.resume import with_parents_overrides

    try:
        return with_parents_overrides(typed, Path.cwd())
    except (ValueError, OSError) as error:
        raise Refused(str(error)) from error


def _refuse_taken_folder(arguments: Sequence[str]) -> None:
    """A folder named by hand must not hold a run already: Hydra would overwrite its configuration first of all."""
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "hydra.run.dir" and (Path(value) / ".hydra").exists():
            raise Refused(f"{Path(value).resolve()} already holds a run; choose another hydra.run.dir, or leave it out")


def _unwritable(error: BaseException | None) -> str | None:
    """The line for an operating-system error anywhere behind `error`: at this point only the output folder was touched."""
    while error is not None:
        if isinstance(error, OSError) and not isinstance(error, CONFIG_ERRORS):
            where = f"{error.filename}: " if error.filename else ""
            reason = f"{where}{error.strerror or error}"
            return f"the output folder cannot be written ({reason}); choose one with hydra.run.dir=FOLDER"
        error = error.__cause__ or error.__context__
    return None


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@contextmanager
def _command_line(arguments: list[str]) -> Iterator[None]:
    """Hydra reads sys.argv, and hands exceptions on instead of printing them only with its own switch for tracebacks.

    Its global configuration is put back as well: where a run folder cannot be made, Hydra would leave it behind.
    """
    argv, full, hydra_config = sys.argv, os.environ.get(FULL_ERROR), HydraConfig.instance().cfg
    sys.argv = ["train.py", *arguments]
    os.environ[FULL_ERROR] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        HydraConfig.instance().cfg = hydra_config
        if full is None:
            del os.environ[FULL_ERROR]
        else:
            os.environ[FULL_ERROR] = full


@contextmanager
def _root_logger_as_it_was() -> Iterator[None]:
    """Close the log files that Hydra opened for the jobs: one process may run many."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        for handler in [handler for handler in root.handlers if handler not in handlers]:
            root.removeHandler(handler)
            handler.close()
        for handler in handlers:
            if handler not in root.handlers:
                root.addHandler(handler)
        root.setLevel(level)
