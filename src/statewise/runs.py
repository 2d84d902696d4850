"""A run folder: what a training run leaves behind, written so that it survives a crash, and read back by `load_run`.

.hydra/                  the composed configuration and the overrides (Hydra writes it)
train.log                everything that was logged (Hydra writes it)
metrics.csv              the metrics over steps in full float64 (Lightning writes it)
events.out.*             the same for TensorBoard, in float32, with its pictures (Lightning writes them)
checkpoints/             best and last
summary.json             the result in one place, see summary.py
predictions.parquet      every prediction on the test rows in original units, see `predictions_frame`
health.json              the verdict on the training, the findings and the checks that were made
gradient_norms.parquet   one row for each logged step, one column for each parameter
eigenvalues.parquet      the eigenvalues of every A_bar over steps (step, layer, real, imag)
epoch_borders.parquet    the training losses around the borders of epochs (epoch, place, loss), see borders/curves.py
report.html              all of it as one page (report.py writes it from the files above)
"""

import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import polars as pl
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from statewise.summary import Errors as Errors
from statewise.summary import RunErrors as RunErrors
from statewise.summary import errors_on_test as errors_on_test
from statewise.summary import plain
from statewise.summary import summarise as summarise

CONFIG = Path(".hydra") / "config.yaml"
OVERRIDES = Path(".hydra") / "overrides.yaml"
METRICS = "metrics.csv"
CHECKPOINTS = "checkpoints"
SUMMARY = "summary.json"
PREDICTIONS = "predictions.parquet"
HEALTH = "health.json"
GRADIENT_NORMS = "gradient_norms.parquet"
EIGENVALUES = "eigenvalues.parquet"
REPORT = "report.html"


class GradientNormHistory(NamedTuple):
    """Norms before clipping. `matrix` is [steps, parameters]; NaN stands for a parameter that had no gradient."""

    steps: np.ndarray
    names: list[str]
    matrix: np.ndarray


class Eigenvalues(NamedTuple):
    """The eigenvalues of one layer's A_bar after one optimiser step."""

    step: int
    layer: str
    values: np.ndarray


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name only when it is complete and on the disk; on any error nothing is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_name(path)
    try:
        with partial.open("wb") as file:
            _lock(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # a full disk does not say of which file it speaks
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


def partial_name(path: Path) -> Path:
    """Under what name this process writes `path` until it is complete."""
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def remove_partial_files(folder: Path) -> list[Path]:
    """Remove what processes that were killed left half-written under a folder; files that are being written stay."""
    removed = []
    for path in sorted(folder.rglob(".*.partial")):
        try:
            with path.open("rb") as file:
                abandoned = _lock(file.fileno())
            if abandoned:
                path.unlink(missing_ok=True)
                removed.append(path)
        except OSError:
            continue
    return removed


def _lock(descriptor: int) -> bool:
    """Lock an open file for as long as it is open; False where another process holds it, or files cannot be locked here."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def write_json(path: Path | str, value: Any) -> None:
    """Strict JSON (no NaN), floats with all their digits (they read back bit-equal), atomically."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with atomic_file(Path(path)) as file:
        file.write(text.encode("utf-8"))


def predictions_frame(
    *,
    series: np.ndarray,
    times: np.ndarray,
    names: Sequence[str],
    truth: np.ndarray,
    prediction: np.ndarray,
    baselines: Mapping[str, np.ndarray] | None = None,
) -> pl.DataFrame:
    """Predictions in long form: series, time, variable, step, target, prediction and one column for each baseline.

    Args:
        series: the series of each window, [n].
        times: of the PREDICTED rows (or their numbers), [n, horizon].
        names: of the m targets; the column `variable`.
        truth: [n, horizon, m]; NaN where it was never observed, which becomes null in the column `target`.
        prediction: [n, horizon, m], as every baseline.

    Rows come in the order of the windows, then of the steps ahead (counted from 1), then of the names.

    Raises: ValueError where the shapes do not fit.
    """
    n, horizon, m = truth.shape
    for name, values in {"prediction": prediction, **(baselines or {})}.items():
        if values.shape != truth.shape:
            raise ValueError(f"{name} must have the shape of truth {truth.shape}, got {values.shape}")
    if series.shape != (n,) or times.shape != (n, horizon) or len(names) != m:
        raise ValueError(
            f"truth {truth.shape} needs {n} series, times of shape {(n, horizon)} and {m} names, "
            f"got {series.shape}, {times.shape} and {len(names)}"
        )
    return pl.DataFrame(
        {
            "series": pl.Series(series.astype(object).repeat(horizon * m), dtype=pl.String),
            "time": times.reshape(-1).repeat(m),
            "variable": pl.Series(np.tile(np.asarray(names, dtype=object), n * horizon), dtype=pl.String),
            "step": np.tile(np.arange(1, horizon + 1, dtype=np.int32).repeat(m), n),
            "target": pl.Series(truth.reshape(-1).astype(np.float64)).fill_nan(None),
            "prediction": prediction.reshape(-1).astype(np.float64),
            **{name: values.reshape(-1).astype(np.float64) for name, values in (baselines or {}).items()},
        }
    )


def write_predictions(path: Path | str, **arrays: Any) -> None:
    """Write what `predictions_frame` makes of the same arguments as Parquet; values are in original units."""
    frame = predictions_frame(**arrays)
    with atomic_file(Path(path)) as file:
        frame.write_parquet(file)


def write_history(
    folder: Path | str,
    *,
    gradient_norms: tuple[Sequence[int], Sequence[str], np.ndarray] | None = None,
    eigenvalues: Sequence[tuple[int, str, np.ndarray]] = (),
) -> None:
    """What the pictures need and metrics.csv does not hold: the `history` of the two callbacks, as they give it."""
    folder = Path(folder)
    if gradient_norms is not None and len(gradient_norms[0]):
        steps, names, matrix = gradient_norms
        values = np.asarray(matrix, dtype=np.float64)
        columns = {name: values[:, j] for j, name in enumerate(names)}
        with atomic_file(folder / GRADIENT_NORMS) as file:
            pl.DataFrame({"optimizer_step": np.asarray(steps, dtype=np.int64), **columns}).write_parquet(file)
    if len(eigenvalues):
        counts = [len(values) for _, _, values in eigenvalues]
        flat = np.concatenate([np.asarray(values, dtype=np.complex128) for _, _, values in eigenvalues])
        frame = pl.DataFrame(
            {
                "step": np.repeat(np.array([step for step, _, _ in eigenvalues], dtype=np.int64), counts),
                "layer": np.repeat(np.array([layer for _, layer, _ in eigenvalues], dtype=object), counts),
                "real": flat.real.copy(),
                "imag": flat.imag.copy(),
            },
            schema_overrides={"layer": pl.String},
        )
        with atomic_file(folder / EIGENVALUES) as file:
            frame.write_parquet(file)


@dataclass(frozen=True)
class Run:
    """A run folder read back. Files are read when they are asked for; what a broken-off run never wrote is None."""

    folder: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """The composed configuration as plain values, interpolations resolved where that is possible outside Hydra."""
        node = OmegaConf.load(self.folder / CONFIG)
        try:
            config = OmegaConf.to_container(node, resolve=True)
        except OmegaConfBaseException:
            config = OmegaConf.to_container(node, resolve=False)
        return {str(key): value for key, value in config.items()} if isinstance(config, dict) else {}

    @cached_property
    def overrides(self) -> list[str]:
        path = self.folder / OVERRIDES
        return [str(entry) for entry in OmegaConf.load(path)] if path.is_file() else []

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        return _read_json(self.folder / SUMMARY)

    @cached_property
    def health(self) -> dict[str, Any] | None:
        return _read_json(self.folder / HEALTH)

    @cached_property
    def metrics(self) -> pl.DataFrame | None:
        """One row for each time something was logged; null where a metric was not logged at that step."""
        path = self.folder / METRICS
        if not path.is_file() or not path.stat().st_size:
            return None
        written = path.read_bytes()
        whole = written[: written.rfind(b"\n") + 1]  # a run that was killed may have left half a line
        if not whole:
            return None
        text = pl.read_csv(whole, infer_schema=False)
        counted = [name for name in ("epoch", "step") if name in text.columns]
        numbers = pl.all().exclude(counted).cast(pl.Float64, strict=False)
        return text.select(pl.col(counted).cast(pl.Int64), numbers).select(text.columns)

    @cached_property
    def predictions(self) -> pl.DataFrame | None:
        path = self.folder / PREDICTIONS
        return pl.read_parquet(path) if path.is_file() else None

    @cached_property
    def gradient_norms(self) -> GradientNormHistory | None:
        path = self.folder / GRADIENT_NORMS
        if not path.is_file():
            return None
        frame = pl.read_parquet(path)
        values = frame.drop("optimizer_step")
        return GradientNormHistory(frame["optimizer_step"].to_numpy(), values.columns, values.to_numpy())

    @cached_property
    def eigenvalues(self) -> list[Eigenvalues]:
        path = self.folder / EIGENVALUES
        if not path.is_file():
            return []
        groups = pl.read_parquet(path).partition_by(["step", "layer"], maintain_order=True)
        return [
            Eigenvalues(group["step"][0], group["layer"][0], group["real"].to_numpy() + 1j * group["imag"].to_numpy())
            for group in groups
        ]

    @property
    def best(self) -> Path | None:
        """The checkpoint with the best monitored value."""
        return _newest(self.folder / CHECKPOINTS, "best*.ckpt")

    @property
    def last(self) -> Path | None:
        """The checkpoint to continue from."""
        return _newest(self.folder / CHECKPOINTS, "last*.ckpt")


def load_run(folder: Path | str) -> Run:
    """Read a run folder back.

    Raises: FileNotFoundError, in one line with the nearest run folders, where there is none.
    """
    path = Path(folder).expanduser().absolute()
    if (path / CONFIG).is_file():
        return Run(path)
    what = "is not a run folder (it has no .hydra/config.yaml)" if path.exists() else "does not exist"
    ancestor = next(parent for parent in (path, *path.parents) if parent.is_dir())
    # A path whose first folder is already wrong says nothing about where the runs are: do not search the whole disk.
    known = [] if ancestor == ancestor.parent else [str(found) for found in run_folders(ancestor)]
    near = difflib.get_close_matches(str(path), known, n=3, cutoff=0.0)
    hint = f"; nearest run folders: {', '.join(near)}" if near else f"; there is no run folder under {ancestor}"
    raise FileNotFoundError(f"{path} {what}{hint}")


def run_folders(root: Path | str, depth: int = 3) -> list[Path]:
    """Every run folder at most `depth` levels below `root`, sorted by name (which is by time under outputs/)."""
    root = Path(root)
    patterns = ["/".join([*["*"] * level, str(CONFIG)]) for level in range(depth + 1)]
    return sorted({config.parent.parent for pattern in patterns for config in root.glob(pattern)})


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); the run can be evaluated again to rewrite it") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold one JSON object, got {type(content).__name__}")
    return content


def _newest(folder: Path, pattern: str) -> Path | None:
    return max(folder.glob(pattern), key=lambda path: path.stat().st_mtime, default=None)
