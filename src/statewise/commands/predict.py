"""`statewise predict`: a trained model on a new file, or on bars as they come.

Exit codes: 0 predicted; 1 a prediction is not finite or nothing could be written; 2 the run or the file was refused.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source
from rich.console import Console
from rich.text import Text

from statewise.choices import one_of
from statewise.config import CONFIG_ERRORS
from statewise.console import console, results_table, targets_table
from statewise.launch import FULL_ERROR, RunFailed
from statewise.predicting.asked import Asked
from statewise.predicting.new_file import NewFile, open_new
from statewise.predicting.whole import Predictions, moment
from statewise.restore import Trained, load_trained
from statewise.runs import PREDICTIONS, atomic_file
from statewise.summary import plain

KINDS = (".parquet", ".csv")
_SERIES_SHOWN = 8


def main(
    folder: Path, data: str | None, out: Path, options: Sequence[str] = (), *, stream: bool, strict: bool, as_json: bool
) -> int:
    """Predict, say what was done, and return the exit code."""
    return exit_code(lambda: _predict(folder, data, out, options, stream=stream, strict=strict, as_json=as_json))


def exit_code(command: Callable[[], int], *, path: bool = True) -> int:
    """That of a command; whatever goes wrong is one line on standard error.

    path: whether the file that is read was given with --data.
    """
    try:
        return command()
    except KeyboardInterrupt:
        return 130
    except (RunFailed, ValueError, OSError, *CONFIG_ERRORS) as error:
        if os.environ.get(FULL_ERROR):
            raise
        line = " ".join(str(error).split("\n"))
        if path:
            # The readers name the key of a run's configuration; here the path has an option of its own.
            line = line.replace("data.path:", "--data:")
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            line = f"a file could not be read or written: {line}"
        sys.stderr.write(f"{line}\n")
        return 1 if isinstance(error, RunFailed | OSError) and not isinstance(error, FileNotFoundError) else 2


def _predict(
    folder: Path, data: str | None, out: Path, options: Sequence[str], *, stream: bool, strict: bool, as_json: bool
) -> int:
    if stream == (data is not None):
        raise ValueError("give either --data FILE, or --stream for bars from standard input")
    trained = load_trained(folder)
    asked = Asked.by(trained, options)
    if stream:
        from statewise.predicting.stream import stream_lines

        return stream_lines(trained, asked, sys.stdin, sys.stdout, sys.stderr, strict=strict)
    assert data is not None
    one_of("the end of --out", out.suffix, KINDS)
    if out.resolve() == (trained.run.folder / PREDICTIONS).resolve():
        raise ValueError(f"--out: {out} holds the test predictions of the run itself; choose another file")
    new = open_new(trained, asked, data)
    for warning in new.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    if new.warnings and strict:
        raise ValueError("nothing was predicted, because --strict refuses what is warned of")
    predictions = Predictions(trained, asked, new)
    write(predictions, out)
    facts = account(predictions, out)
    if as_json:
        sys.stdout.write(json.dumps(plain(facts), indent=2, ensure_ascii=False) + "\n")
    else:
        _print(console(), trained, new, facts)
    return 0


def write(predictions: Predictions, out: Path) -> None:
    """Writes predictions batch by batch, so that none but the latest are in memory.

    The file appears under its name when it is complete.
    """

    def frames(columns: list[str] | None, predicate: Any, rows: int | None, size: int | None) -> Iterator[pl.DataFrame]:
        yield from predictions.frames()

    source = register_io_source(frames, schema=predictions.schema)
    with atomic_file(out) as file:
        if out.suffix == ".csv":
            zone = "" if predictions.new.naive else "Z"
            source.sink_csv(file, datetime_format=f"%Y-%m-%dT%H:%M:%S%.f{zone}")
        else:
            source.sink_parquet(file)


def account(predictions: Predictions, out: Path) -> dict[str, Any]:
    """What was predicted, and how well, in plain values."""
    new, scores, trained = predictions.new, predictions.scores, predictions.trained
    counts = np.bincount(new.rows.codes_of(new.starts), minlength=len(new.rows.series)) * trained.form.horizon
    known = scores.any
    return {
        "run": str(trained.run.folder),
        "model": (trained.run.summary or {}).get("model", "model"),
        "data": new.name,
        "out": str(out),
        "rows": len(new.rows),
        "windows": len(new.starts),
        "predictions": len(predictions),
        "per_series": dict(zip(new.rows.series, counts.tolist(), strict=True)),
        "first": moment(predictions.first),
        "last": moment(predictions.last),
        "beyond_the_file": predictions.beyond,
        "warnings": list(new.warnings),
        "errors": scores.of_model() if known else None,
        "baselines": scores.of_baselines() if known else None,
    }


def _print(to: Console, trained: Trained, new: NewFile, facts: Mapping[str, Any]) -> None:
    for note in new.notes:
        _line(to, "data", note)
    horizon = trained.form.horizon
    ahead = "1 step" if horizon == 1 else f"{horizon} steps"
    beyond = f", {facts['beyond_the_file']:,} of them of rows the file does not have" if facts["beyond_the_file"] else ""
    _line(to, "predicted", f"{facts['predictions']:,} rows, {ahead} ahead of {facts['windows']:,} windows{beyond}")
    if len(facts["per_series"]) > 1:
        shown = list(facts["per_series"].items())[:_SERIES_SHOWN]
        more = f" and {len(facts['per_series']) - _SERIES_SHOWN:,} more" if len(facts["per_series"]) > _SERIES_SHOWN else ""
        _line(to, "series", ", ".join(f"{name} {count:,}" for name, count in shown) + more)
    _line(to, "period", f"{facts['first']} to {facts['last']}")
    if facts["errors"] is None:
        _line(to, "errors", "none, because the file has no target for a predicted row")
    else:
        summary = {"model": facts["model"], "data": facts["data"], "test": facts["errors"], "baselines": facts["baselines"]}
        to.print()
        for table in (results_table(summary, "predicted rows"), targets_table(summary)):
            if table is not None:
                to.print(table)
                to.print()
        if targets_table(summary) is None:
            mse, mae = (facts["errors"][f"{key}_original_units"] for key in ("mse", "mae"))
            _line(to, "in original units", f"MSE {mse:.6g}, MAE {mae:.6g}")
    _line(to, "written to", facts["out"])


def _line(to: Console, name: str, text: str) -> None:
    to.print(Text.assemble((f"{name:<18}", "dim"), text), soft_wrap=True)
