"""`statewise evaluate`: the table of a run once more, computed from its best checkpoint.

Exit codes: 0 evaluated; 1 it failed; 2 the run or the data were refused.
"""

import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from statewise import assembly, schemas
from statewise.checkpoints.recipe import Opened, opened
from statewise.choices import one_of
from statewise.commands.predict import exit_code
from statewise.config import CONFIG_ERRORS, explain
from statewise.console import console, print_figures
from statewise.data.datamodule import WindowsDataModule
from statewise.evaluation import test_figures
from statewise.launch import RunFailed
from statewise.lightning_log import quieten_lightning
from statewise.metrics import errors
from statewise.models.baselines import evaluate_baselines, floor, last_value, zero
from statewise.parallel.company import has_company, several
from statewise.parallel.follow import quietly
from statewise.parallel.followers import Call, Lost, ended_with_the_run
from statewise.parallel.ranks import RANK
from statewise.parallel.sharding import precision_of
from statewise.parallel.started_at_once import started_at_once
from statewise.parallel.strategies import refuse_processes, strategy_of
from statewise.predicting.asked import Asked
from statewise.predicting.new_data import NewData
from statewise.restore import Restored, load_trained, restore
from statewise.schemas import Hardware
from statewise.summary import plain
from statewise.task import Forecasting
from statewise.trading import Trading

SPLITS = ("test", "val")


def main(
    folder: Path,
    split: str,
    data: str | None,
    options: Sequence[str] = (),
    *,
    as_json: bool,
    hardware: str | None = None,
) -> int:
    """Evaluate, print the table, and return the exit code."""
    if hardware is not None and has_company() and (start := started_at_once()) and start.rank > 0:
        os.environ[RANK] = str(start.rank)
        return quietly(take_part, folder=str(folder), split=split, data=data, options=options, hardware=hardware)

    def evaluate() -> int:
        try:
            return _evaluate(folder, split, data, options, as_json=as_json, hardware=hardware)
        except Lost as error:
            raise RunFailed(str(error)) from error

    # Without --data it is the file of the run that may be gone.
    return exit_code(evaluate, path=data is not None)


def _evaluate(
    folder: Path, split: str, data: str | None, options: Sequence[str], *, as_json: bool, hardware: str | None = None
) -> int:
    one_of("--split", split, SPLITS)
    if data is None:
        if options:
            raise ValueError(f"{options[0]} says how a new file is written: it needs --data")
        found = on_split(folder, split, hardware)
    else:
        found = on_new_data(folder, data, options, hardware)
    for warning in found["warnings"]:
        sys.stderr.write(f"warning: {warning}\n")
    if as_json:
        sys.stdout.write(json.dumps(plain(found), indent=2, ensure_ascii=False) + "\n")
        return 0
    to = console()
    print_figures(found, found["rows"], to=to)
    for note in found["notes"]:
        to.print(note, style="dim", soft_wrap=True, markup=False)
    return 0


def on_split(folder: Path, split: str, hardware: str | None = None) -> dict[str, Any]:
    """The figures of a run on its test or validation rows: with `split` test, bit for bit those of its summary.

    hardware: an option of the group, where other processes may help; None is one process.

    Raises:
        FileNotFoundError, ValueError: as `restore`.
    """
    kept = opened(folder)
    model, datamodule = _restored(kept, split)
    run, config = kept.run, kept.config
    notes = []
    if split != "test":
        notes.append("checkpoint and linear baseline were chosen on these rows, so both look better here than on others")
    help_with = {"folder": str(Path(folder).absolute()), "split": split, "hardware": hardware}
    task = tested(config, datamodule, model, hardware, Call("statewise.commands.evaluate:take_part", help_with))
    baselines = evaluate_baselines(datamodule)
    found = {name: None if one is None else {"mse": one.mse, "mae": one.mae} for name, one in baselines.results.items()}
    last = baselines.results["last_value"]
    return {
        **_titles(run.summary, config, folder),
        "rows": {"test": "test rows", "val": "validation rows"}[split],
        "windows": datamodule.n_windows("test"),
        "test": _figures(config, datamodule, task, None if last is None else last.predictions),
        "baselines": found,
        "floor": None if (best := floor(datamodule)) is None else {"mse": best},
        "warnings": [],
        "notes": notes,
    }


def on_new_data(folder: Path, path: str, options: Sequence[str] = (), hardware: str | None = None) -> dict[str, Any]:
    """The figures of a run on all rows of a new file, beside the baselines that need no training data.

    Raises:
        FileNotFoundError, ValueError: there is no such run or file, or the file is of another form than the training data.
    """
    trained = load_trained(folder)
    datamodule = NewData(trained, Asked.by(trained, options), path)
    datamodule.setup()
    help_with = {"folder": str(Path(folder).absolute()), "data": path, "options": list(options), "hardware": hardware}
    task = tested(trained.config, datamodule, trained.model, hardware, Call("statewise.commands.evaluate:take_part", help_with))
    truth, observed = datamodule.last_step("test")
    forecasts = {"last_value": last_value(datamodule), "zero": zero(datamodule)}
    measured = {name: errors(values, truth, observed) for name, values in forecasts.items() if values is not None}
    return {
        **_titles(trained.run.summary, trained.config, folder),
        "data": path,
        "rows": "all rows",
        "windows": datamodule.n_windows("test"),
        "test": _figures(trained.config, datamodule, task, forecasts["last_value"]),
        "baselines": {name: {key: float(values[key]) for key in ("mse", "mae")} for name, values in measured.items()},
        "floor": None,
        "warnings": datamodule.warnings,
        "notes": ["the linear baseline is left out: it is fitted on the training data, which are not read here"],
    }


def take_part(folder: str, hardware: str, split: str = "test", data: str | None = None, options: Sequence[str] = ()) -> None:
    """A further process of an evaluation: the same test, with nothing to say."""
    if data is None:
        found = opened(folder)
        model, datamodule = _restored(found, split)
        tested(found.config, datamodule, model, hardware)
    else:
        trained = load_trained(folder)
        new = NewData(trained, Asked.by(trained, options), data)
        new.setup()
        tested(trained.config, new, trained.model, hardware)


def tested(
    config: DictConfig,
    datamodule: WindowsDataModule,
    model: torch.nn.Module,
    hardware: str | None = None,  # noqa: PT028  no test
    follow: Call | None = None,  # noqa: PT028
) -> Forecasting:
    """The task of a run after the test of its model, in the precision of the run; on a CPU where its hardware is missing.

    Args:
        hardware: an option of the group hardware; None takes one device of the kind that the run has had.
        follow: what further processes are to do, where this one starts them.
    """
    task = assembly.build_task(config, datamodule, model)
    quieten_lightning()
    on = _one_device(config) if hardware is None else _hardware(hardware)
    on.precision = config.hardware.precision
    assembly.refuse_missing_hardware(on.accelerator, on.precision)
    precision, plugins = precision_of(on)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*GPU available but not used.*")
        trainer = assembly.make_trainer(
            accelerator=on.accelerator,
            devices=on.devices,
            num_nodes=on.num_nodes,
            strategy=strategy_of(on, follow),
            precision=precision,
            plugins=plugins,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
        if several(on):
            refuse_processes(trainer, datamodule.batch_size, None)
        with ended_with_the_run():
            trainer.test(task, datamodule=datamodule, verbose=False)
    return task


def _restored(found: Opened, split: str) -> Restored:
    """With the windows of the split where all that measures asks for those of the test."""
    restored = restore(found)
    prepared = restored.datamodule.prepared
    if split != "test":
        prepared.parts = {**prepared.parts, "test": prepared.part(split)}
    return restored


def _one_device(config: DictConfig) -> Hardware:
    return Hardware(accelerator=config.hardware.accelerator if torch.cuda.is_available() else "cpu")


def _hardware(name: str) -> Any:
    schemas.register()
    try:
        with initialize_config_module("statewise.conf", version_base="1.3"):
            return compose("train", overrides=[f"hardware={name}"]).hardware
    except CONFIG_ERRORS as error:
        raise ValueError(explain(error, [f"hardware={name}"])) from error


def _figures(
    config: DictConfig, datamodule: WindowsDataModule, task: Forecasting, last: np.ndarray | None
) -> Mapping[str, Any]:
    trading: Any = OmegaConf.to_container(config.get("evaluate") or OmegaConf.create({}))
    return test_figures(datamodule, task, trading=Trading(**trading), last_value=last)


def _titles(summary: Mapping[str, Any] | None, config: DictConfig, folder: Path) -> dict[str, Any]:
    """What a run calls its model and its data; a run that was broken off has no summary."""
    names = summary or {part: str(config[part]._target_).rpartition(".")[2] for part in ("model", "data")}
    nothing = "no target is observed on these rows"
    return {"run": str(folder), "model": names["model"], "data": names["data"], "error": nothing}
