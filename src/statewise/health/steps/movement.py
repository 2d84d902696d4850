"""How far the parameters have come since the run began, block by block, as plain values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from statewise.health.graph.registered import registered
from statewise.health.parameters import Inventory
from statewise.health.steps.fingerprint import Fingerprint
from statewise.health.steps.sharded import ShardedFingerprint, fingerprint
from statewise.health.steps.updates import UpdateMonitor
from statewise.parallel.shards import over_all

# Points of the record; when it is full, every second one goes and the distance doubles.
_POINTS = 200
# Elements of one parameter that are kept for comparison: all of them below this, else as many, side by side.
_KEPT = 256


@dataclass(frozen=True)
class Movement:
    """One moment: what each block, and the run as a whole, did so far and in the last step that was compared.

    NaN where nothing is known, as for a block that no optimizer holds.
    """

    step: int
    # ||p - p0|| / ||p0||, over the elements that are kept; over ||p - p0|| alone where a block began as zeros.
    since_start: dict[str, float]
    # Root mean square of the last update over that of the values, and the norm of the gradient that it used.
    update_ratio: dict[str, float]
    gradient_norm: dict[str, float]
    # Share of the trainable parameters that the last compared step moved.
    share_moving: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values; what is not known is None."""
        return {
            "step": self.step,
            "since_start": _plain(self.since_start),
            "update_ratio": _plain(self.update_ratio),
            "gradient_norm": _plain(self.gradient_norm),
            "share_moving": None if np.isnan(self.share_moving) else self.share_moving,
        }


class MovementLog:
    """Remembers where the parameters began, and a short record of how they went on.

    The last point is exact; the points before it are taken when the steps were compared, at a distance that grows.
    """

    def __init__(self) -> None:
        self._began: dict[str, torch.Tensor] = {}
        self._names: tuple[str, ...] = ()
        self._blocks: Fingerprint | None = None
        self._start = np.zeros(0)
        self._points: list[dict[str, Any]] = []
        self._every = 1
        self._next = 0
        self._resumed: int | None = None  # where the next point of an interrupted run is due

    def begin(self, inventory: Inventory, module: nn.Module, step: int) -> None:
        """Keep where every parameter starts; after a resume the start is that of the interrupted run."""
        named = {name: registered(p) for name, p in module.named_parameters(remove_duplicate=True)}
        chosen = {fact.name: named[fact.name] for fact in inventory.parameters if fact.name in named and fact.size}
        chosen = {name: parameter for name, parameter in chosen.items() if over_all(parameter)}
        self._names = tuple(chosen)
        self._blocks = fingerprint(list(chosen.values()), _KEPT)
        values = self._now()
        ends = np.cumsum(self._blocks.lengths)
        for name, end, length in zip(self._names, ends, self._blocks.lengths, strict=True):
            known = self._began.get(name)
            if known is None or len(known) != length:
                self._began[name] = torch.from_numpy(values[end - length : end].copy())
        self._start = np.concatenate([self._began[name].numpy() for name in self._names]) if self._names else values
        self._next, self._resumed = (step if self._resumed is None else self._resumed), None

    def follow(self, inventory: Inventory, module: nn.Module) -> None:
        """Parameters are other objects now: those with a new name begin here."""
        self.begin(inventory, module, self._next)

    def now(self, step: int, updates: Sequence[UpdateMonitor]) -> Movement:
        """What is known at this moment."""
        blocks = [block_of(name) for name in self._names]
        moved, size = self._distances()
        began = {block: [0.0, 0.0] for block in blocks}
        for block, distance, norm in zip(blocks, moved, size, strict=True):
            began[block][0] += distance
            began[block][1] += norm
        since = {name: float((moved / size if size else moved) ** 0.5) for name, (moved, size) in began.items()}
        ratios, norms, moving = _last_step(updates, began)
        return Movement(step, since, ratios, norms, moving)

    def _now(self) -> np.ndarray:
        """The blocks of all parameters, in one transfer."""
        if self._blocks is None or not self._names:
            return np.zeros(0)
        with torch.no_grad():
            values = np.asarray(self._blocks.values().cpu().double().numpy())
        return self._blocks.collect({"": values}, {})[0][""] if isinstance(self._blocks, ShardedFingerprint) else values

    def _distances(self) -> tuple[np.ndarray, np.ndarray]:
        """Squared distance from the start and squared size of the start, of each parameter."""
        if self._blocks is None:
            return np.zeros(0), np.zeros(0)
        weights, moved = self._blocks.numels / self._blocks.lengths, self._now() - self._start
        return weights * self._blocks.sums(moved * moved), weights * self._blocks.sums(self._start * self._start)

    def note(self, step: int, updates: Sequence[UpdateMonitor], last: bool = False) -> None:
        """A reading was made at this step: keep a point if one is due. last: of the run."""
        if not self._names or (step < self._next and not last):
            return
        if self._points and self._points[-1]["step"] == step:
            return
        self._points.append(self.now(step, updates).as_dict())
        if len(self._points) >= _POINTS:
            self._points = self._points[::2]
            self._every *= 2
        # Early steps tell most, and a point costs as much as a few watched steps: a sixth of the way behind, at least.
        self._next = step + max(self._every, step // 6)

    def close(self) -> None:
        """Let go of the parameters' memory."""
        if self._blocks is not None:
            self._blocks.clear()

    def as_list(self) -> list[dict[str, Any]]:
        """The record, oldest first."""
        return list(self._points)

    def state_dict(self) -> dict[str, Any]:
        """Where the parameters began, and the record."""
        began = {n: v.detach().cpu().clone() for n, v in self._began.items()}
        return {"began": began, "points": self.as_list(), "every": self._every, "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over from a run that was interrupted."""
        self._began, self._points = dict(state["began"]), list(state["points"])
        self._every, self._resumed = int(state.get("every", 1)), state.get("next")


def block_of(name: str) -> str:
    """The first two parts of a parameter's path, without its own name: `model.ssm_0` of `model.ssm_0.A`."""
    parts = name.split(".")
    return ".".join(parts[:-1][:2]) or name


def _last_step(
    updates: Sequence[UpdateMonitor], blocks: dict[str, list[float]]
) -> tuple[dict[str, float], dict[str, float], float]:
    sums = {name: np.zeros(3) for name in blocks}
    known: set[str] = set()
    moving = count = 0
    for name, ratio, value, gradient, numel in _rows(updates):
        count += 1
        moving += ratio > 0
        block = block_of(name)
        if np.isfinite(value) and np.isfinite(ratio) and block in sums:
            known.add(block)
            sums[block] += numel * np.array([(ratio * value) ** 2, value**2, np.nan_to_num(gradient) ** 2])
    nothing = float("nan")
    ratios = {n: float((s[0] / s[1]) ** 0.5) if n in known and s[1] > 0 else nothing for n, s in sums.items()}
    norms = {n: float(s[2] ** 0.5) if n in known else nothing for n, s in sums.items()}
    return ratios, norms, float(moving / count) if known else nothing


def _rows(updates: Sequence[UpdateMonitor]) -> Iterator[tuple[str, float, float, float, float]]:
    for update in updates:
        runs = update.runs
        yield from zip(update.names, runs.update_ratio, runs.value_size, runs.size, update.blocks.numels, strict=True)


def _plain(values: dict[str, float]) -> dict[str, float | None]:
    return {name: None if np.isnan(value) else value for name, value in values.items()}
