"""`statewise data`: what was understood of files, what is odd in them, and whether training would begin.

Exit codes: 0 training would begin; 1 the leak audit found a leak; 2 training would refuse.
"""

import glob
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, open_dict

from statewise.console import console
from statewise.launch import MULTIRUN, TAKE_A_VALUE, Job, Refused, RunFailed, launch, options_first

if TYPE_CHECKING:
    from statewise.data.datamodule import WindowsDataModule
    from statewise.data.doctor.examination import Examination
    from statewise.data.doctor.leaks import Finding

USAGE = "usage: statewise data PATH... [--json] [--leak-audit] [KEY=VALUE ...]: name a file, a folder or a pattern"
# Nothing but the page goes to the screen; the log goes to a file that is thrown away.
OWN = ("logger=csv", "hydra.job_logging.handlers.console.level=CRITICAL")
_OVERRIDE = re.compile(r"[+~]{0,2}[\w.@/-]+=.*|~[\w.@/]+", re.DOTALL)


def main(argv: Sequence[str], *, as_json: bool = False, leak_audit: bool = False) -> int:
    """Examine the files among the arguments under the overrides among them, and return the exit code."""
    options, paths = _divided(argv)
    keys = [argument.partition("=")[0] for argument in options]
    if not paths and "data.path" not in keys:
        sys.stderr.write(f"{USAGE}\n")
        return 2
    if paths and "data.path" in keys:
        sys.stderr.write(f"{USAGE}; the path stands first, leave out data.path=\n")
        return 2
    if MULTIRUN & set(options) or {"data", "resume"} & set(keys):
        sys.stderr.write("statewise data looks at files once: leave out --multirun, data= and resume=\n")
        return 2
    job = partial(_examine, paths=paths, as_json=as_json, leak_audit=leak_audit)
    with tempfile.TemporaryDirectory(prefix="statewise-data-") as folder:
        return launch(job, ["data=file", *options, *OWN, f"hydra.run.dir={folder}/run"])


def _divided(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options and overrides, and paths; a path may hold an equals sign, as those of partitions do."""
    options: list[str] = []
    paths: list[str] = []
    rest = iter(options_first(argv))
    for argument in rest:
        named = Path(argument).expanduser()
        if argument.startswith("-"):
            options.append(argument)
            if argument in TAKE_A_VALUE:
                options += [value for value in [next(rest, None)] if value is not None]
        elif _OVERRIDE.fullmatch(argument) and not named.exists() and not glob.glob(str(named)):
            options.append(argument)
        else:
            paths.append(argument)
    return options, paths


def _examine(config: DictConfig, job: Job, *, paths: list[str], as_json: bool, leak_audit: bool) -> float:
    """Print the page, and return how many rows there are.

    Raises:
        Refused: training would refuse; the page says what was understood so far.
        RunFailed: there is a leak.
    """
    import torch
    from hydra.utils import instantiate

    from statewise.assembly import DTYPES
    from statewise.data.doctor.examination import examine
    from statewise.lightning_log import quieten_lightning
    from statewise.train import refusals

    if paths:
        with open_dict(config):
            config.data.path = paths[0] if len(paths) == 1 else paths
    quieten_lightning()
    with refusals():
        keys = instantiate(config.data, _partial_=True, _convert_="object").keywords
        dtype = DTYPES.get(config.hardware.precision, torch.float32)
        found = examine(keys, dtype=dtype, further=lambda module: _further(config, module))
    leaks, failure = None, None
    if leak_audit:
        try:
            leaks = _leaks(config, found)
        except ValueError as error:
            failure = f"the leak audit could not be made: {error}"
    _show(found, leaks, as_json=as_json, leak_audit=leak_audit and failure is None)
    if found.refused is not None:
        raise Refused(found.refused)
    if failure is not None:
        raise Refused(failure)
    leaking = [leak.name for leak in leaks or () if not leak.passed]
    if leaking:
        raise RunFailed(f"the leak audit found a leak: {', '.join(leaking)}")
    return float(found.rows)


def _further(config: DictConfig, module: "WindowsDataModule") -> None:
    """Builds what a run builds over its data, and so raises what a run would."""
    from statewise import assembly
    from statewise.trading import Trading
    from statewise.train import refusals

    try:
        with refusals():
            assembly.build_task(config, module, assembly.build_model(config, module))
            Trading(**config.evaluate).check(module.target_names, module.targets_are_levels)
    except Refused as error:
        raise ValueError(str(error)) from error


def _leaks(config: DictConfig, found: "Examination") -> list["Finding"] | None:
    """The audit of the data and of the configured model with random weights; None where there is nothing to audit."""
    import torch

    from statewise import assembly
    from statewise.data.doctor.leaks import audit, model_audit

    if found.module is None or found.table is None or found.over is None:
        return None
    findings = audit(found.table, found.over, seed=config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = assembly.build_model(config, found.module)
    inputs = next(found.module.evaluation_batches("train", 8)).inputs

    def outputs(values: Any) -> Any:
        answer = model(values)
        return answer[0] if isinstance(answer, tuple) else answer

    model.eval()
    return [*findings, model_audit(outputs, inputs, seed=config.seed)]


def _show(found: "Examination", leaks: list["Finding"] | None, *, as_json: bool, leak_audit: bool) -> None:
    from statewise.data.doctor.as_json import as_json as plain
    from statewise.data.doctor.page import print_page

    if as_json:
        sys.stdout.write(json.dumps(plain(found, leaks), indent=2, allow_nan=False) + "\n")
    else:
        print_page(console(), found, leaks, leak_audit=leak_audit)
