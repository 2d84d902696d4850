"""From a command line to an exit code: Hydra composes, `run` does each job, and every failure ends in one line.

Exit codes: 0 ok; 1 a run failed, diverged or is unhealthy; 2 refused before any work; 130 and 143 interrupted.
"""

import logging
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from statewise import schemas
from statewise.choices import did_you_mean
from statewise.config import CONFIG_ERRORS, config_groups, explain, unknown_keys
from statewise.interrupts import Interrupted

log = logging.getLogger(__name__)

FULL_ERROR = "HYDRA_FULL_ERROR"
MULTIRUN = {"-m", "--multirun"}
TAKE_A_VALUE = {"--cfg", "-c", "--package", "-p", "--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"}


class Refused(Exception):
    """The configuration or the data is refused before any work; the message is the one line that is printed."""

    exit_code = 2


class RunFailed(Exception):
    """A run ended with a status other than ok; the message is the one line that is printed."""

    exit_code = 1


@dataclass
class Job:
    """What became of one job of a command."""

    overrides: list[str]  # all of them, those of a resumed parent included
    typed: list[str]  # those of this command
    folder: Path
    status: str = "failed"
    objective: float | None = None
    message: str = ""
    exit_code: int = 1


def launch(run: Callable[[DictConfig, Job], float], argv: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code.

    Args:
        run: does one job in its run folder and returns the objective; it sets the job's status.
        argv: the arguments after the program's name; those of this process by default.
    """
    typed = options_first(sys.argv[1:] if argv is None else argv)
    show_traceback = bool(os.environ.get(FULL_ERROR))
    schemas.register()
    OmegaConf.register_new_resolver("new_folder", _new_folder, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("config_groups", config_groups, replace=True)
    jobs: list[Job] = []

    @hydra.main(version_base="1.3", config_path="pkg://statewise.conf", config_name="train")
    def train(config: DictConfig) -> float:
        return _do(run, config, typed, jobs, show_traceback)

    try:
        _refuse_taken_folder(typed)
        arguments = _with_parents_overrides(typed)
        with _command_line(arguments), _root_logger_as_it_was():
            train()
    except Interrupted as interrupted:
        _say(str(interrupted))
        return interrupted.exit_code
    except KeyboardInterrupt:
        _say("interrupted before the run began")
        return 130
    except SystemExit as end:  # --help, --cfg, and argparse's usage errors
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 2
    except (Refused, RunFailed) as failure:
        if not jobs:
            _say(str(failure))
            return failure.exit_code
    except (OSError, *CONFIG_ERRORS) as error:
        if show_traceback:
            traceback.print_exc()
        _say(_unwritable(error) or explain(error, typed))
        return 2
    if MULTIRUN & set(typed):
        _say_what_came_of(jobs)
    return max((job.exit_code for job in jobs), default=0)


def _say_what_came_of(jobs: Sequence[Job]) -> None:
    """The tables at the end of a multirun; that of a sweep over data.fold is kept in its folder as well."""
    from statewise.console import console, sweep_table
    from statewise.fold_table import fold_groups, fold_table, sweep_folder, write_folds

    rows = [vars(job) for job in jobs]
    console().print(sweep_table(rows))
    if groups := fold_groups(rows):
        console().print(fold_table(groups))
        try:
            write_folds(groups, sweep_folder(groups))
        except OSError as error:
            _say(f"the table of the folds could not be written: {error}")


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


def _do(
    run: Callable[[DictConfig, Job], float], config: DictConfig, typed: list[str], jobs: list[Job], show_traceback: bool
) -> float:
    """Run one job; whatever goes wrong becomes one line on the screen, and one with its traceback in the job's own log."""
    settings = HydraConfig.get()
    overrides = list(settings.overrides.task)
    job = Job(overrides, typed, Path(settings.runtime.output_dir))
    jobs.append(job)
    try:
        if strange := unknown_keys(config, schemas.Train.__dataclass_fields__):
            suggestion = did_you_mean(strange[0], schemas.Train.__dataclass_fields__)
            raise Refused(f"there is no configuration key '{strange[0]}'{suggestion}")
        job.objective = run(config, job)
        job.status, job.exit_code = "ok", 0
        return job.objective
    except Exception as error:
        job.message, job.exit_code = _one_line(error, overrides)
        _say(job.message)
        _write_to_log_file(job.message, error)
        if show_traceback:
            traceback.print_exception(error)
        if settings.mode == RunMode.MULTIRUN:  # a sweeper must know
            raise (Refused if job.exit_code == 2 else RunFailed)(job.message) from error
        return math.nan


def _one_line(error: Exception, overrides: list[str]) -> tuple[str, int]:
    if isinstance(error, Refused | RunFailed):
        return " ".join(str(error).split("\n")), error.exit_code
    if isinstance(error, CONFIG_ERRORS):
        return explain(error, overrides), 2
    if isinstance(error, OSError):
        return f"a file could not be read or written: {error}; the run folder keeps what was written before", 1
    text = str(error).strip().splitlines()
    return (
        f"internal error, {type(error).__name__}: {text[0] if text else 'no message'} (set {FULL_ERROR}=1 for the traceback)",
        1,
    )


def _new_folder(path: str) -> str:
    """Create a folder that did not exist before: `path`, or `path-2` and so on where another run took it first."""
    wanted = Path(path)
    wanted.parent.mkdir(parents=True, exist_ok=True)
    candidate, count = wanted, 1
    while True:
        try:
            candidate.mkdir()
            return str(candidate)
        except FileExistsError:
            count += 1
            candidate = wanted.with_name(f"{wanted.name}-{count}")


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


def _write_to_log_file(message: str, error: Exception) -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            details = (type(error), error, error.__traceback__)
            handler.handle(logging.LogRecord(log.name, logging.ERROR, __file__, 0, message, None, details))


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
