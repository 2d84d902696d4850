"""`statewise evaluate`: the table of a run once more, computed from its best checkpoint.

Exit codes: 0 evaluated; 1 it failed; 2 the run or the data were refused.
"""

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from statewise import assembly
from statewise.choices import one_of
from statewise.console import console, print_figures
from statewise.data.datamodule import WindowsDataModule
from statewise.evaluation import test_figures
from statewise.metrics import errors
from statewise.models.baselines import evaluate_baselines, floor, last_value, zero
from statewise.predict import exit_code
from statewise.predicting.asked import Asked
from statewise.predicting.new_data import NewData
from statewise.restore import load_trained, restore
from statewise.runs import load_run
from statewise.summary import plain
from statewise.task import Forecasting
from statewise.trading import Trading
from statewise.train import quieten_lightning

SPLITS = ("test", "val")


def main(folder: Path, split: str, data: str | None, options: Sequence[str] = (), *, as_json: bool) -> int:
    """Evaluate, print the table, and return the exit code."""
    # Without --data it is the file of the run that may be gone.
    return exit_code(lambda: _evaluate(folder, split, data, options, as_json=as_json), path=data is not None)


def _evaluate(folder: Path, split: str, data: str | None, options: Sequence[str], *, as_json: bool) -> int:
    one_of("--split", split, SPLITS)
    if data is None:
        if options:
            raise ValueError(f"{options[0]} says how a new file is written: it needs --data")
        found = on_split(folder, split)
    else:
        found = on_new_data(folder, data, options)
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


def on_split(folder: Path, split: str) -> dict[str, Any]:
    """The figures of a run on its test or validation rows: with `split` test, bit for bit those of its summary.

    Raises:
        FileNotFoundError, ValueError: as `restore`.
    """
    run = load_run(folder)
    model, datamodule = restore(folder)
    config = OmegaConf.create(run.config)
    notes = []
    if split != "test":
        # All that measures asks for the test windows.
        datamodule.prepared.parts = {**datamodule.prepared.parts, "test": datamodule.prepared.part(split)}
        notes.append("checkpoint and linear baseline were chosen on these rows, so both look better here than on others")
    task = tested(config, datamodule, model)
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


def on_new_data(folder: Path, path: str, options: Sequence[str] = ()) -> dict[str, Any]:
    """The figures of a run on all rows of a new file, beside the baselines that need no training data.

    Raises:
        FileNotFoundError, ValueError: there is no such run or file, or the file is of another form than the training data.
    """
    trained = load_trained(folder)
    datamodule = NewData(trained, Asked.by(trained, options), path)
    datamodule.setup()
    task = tested(trained.config, datamodule, trained.model)
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


def tested(config: DictConfig, datamodule: WindowsDataModule, model: torch.nn.Module) -> Forecasting:
    """The task of a run after the test of its model, in the precision of the run; on a CPU where its hardware is missing."""
    task = assembly.build_task(config, datamodule, model)
    quieten_lightning()
    accelerator = config.hardware.accelerator if torch.cuda.is_available() else "cpu"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*GPU available but not used.*")
        trainer = L.Trainer(
            accelerator=accelerator,
            devices=1,
            precision=config.hardware.precision,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
        trainer.test(task, datamodule=datamodule, verbose=False)
    return task


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
