"""Which parameters moved between two files, and by how much: did the training do anything?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from statewise.checkpoints.entry import MODEL_PREFIX
from statewise.checkpoints.foreign import bare, belong_together
from statewise.checkpoints.weights import Weights

SHOWN = 4
# Below it a parameter did move, but by less than single precision could show.
HARDLY = 1e-7


@dataclass(frozen=True)
class Change:
    """One parameter in both files.

    Attributes:
        relative: ||b - a|| / ||a||; None where a is zero, or either is not finite; 0 where they are equal to the bit.
        largest: the largest |b - a|; None where either is not finite.
        share: of the entries that are not the same.
        equal: to the bit, and of the same type.
        not_finite: entries of b that are not finite.
        counts: integers, such as a counter of steps, which no training moves by a gradient.
        constant: named as such.
    """

    name: str
    shape: list[int]
    dtypes: list[str]
    relative: float | None
    largest: float | None
    share: float
    equal: bool
    not_finite: int
    counts: bool
    constant: bool


@dataclass(frozen=True)
class Difference:
    """Two files compared.

    Attributes:
        only_a, only_b: names without a partner in the other file.
        other_shape: name, shape in a, shape in b.
    """

    changes: list[Change]
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    other_shape: list[tuple[str, list[int], list[int]]] = field(default_factory=list)

    @property
    def judged(self) -> list[Change]:
        """Those that training is to move."""
        return [change for change in self.changes if not change.counts and not change.constant]

    @property
    def still(self) -> list[Change]:
        """Of these, those that did not."""
        return [change for change in self.judged if change.equal]

    @property
    def comparable(self) -> bool:
        """Whether both files hold the same parameters."""
        return not (self.only_a or self.only_b or self.other_shape)

    @property
    def all_moved(self) -> bool:
        """What is to be expected of training: everything moved, and to finite values."""
        return self.comparable and bool(self.judged) and not self.still and not any(c.not_finite for c in self.judged)

    @property
    def all_equal(self) -> bool:
        """What is to be expected of the same training twice: nothing differs by a bit, counters and constants included."""
        return self.comparable and all(change.equal for change in self.changes)

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "all_moved": self.all_moved,
            "all_equal": self.all_equal,
            "parameters": [asdict(change) for change in self.changes],
            "only_a": self.only_a,
            "only_b": self.only_b,
            "other_shape": [{"name": name, "a": a, "b": b} for name, a, b in self.other_shape],
        }

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        judged, still = self.judged, self.still
        total = f"{len(judged)} parameter{'s' if len(judged) != 1 else ''}"
        if not judged:
            answer = "no parameter is in both files" if not self.changes else "only counters and constants are in both files"
        elif len(still) == len(judged):
            answer = f"nothing moved: all {total} are equal to the bit"
        elif still:
            answer = f"{len(still)} of {total} {'are' if len(still) > 1 else 'is'} equal to the bit: {_listed(still)}"
            answer += f"; the others moved{_range(judged)}"
        else:
            answer = f"all {total} moved{_range(judged)}"
        hardly = [change for change in judged if not change.equal and _hardly(change)]
        if hardly:
            answer += f"; hardly moved, by less than {HARDLY:g} of their norm: {_listed(hardly)}"
        if broken := [change for change in judged if change.not_finite]:
            answer += f"; not finite in B: {_listed(broken)}"
        if not self.comparable:
            parts = ((self.only_a, "only in A"), (self.only_b, "only in B"), (self.other_shape, "of another shape"))
            answer += "; " + ", ".join(f"{len(names)} {where}" for names, where in parts if names)
        return answer


def difference(a: Weights, b: Weights, constants: Sequence[str] = ()) -> Difference:
    """Compare the tensors of two files; prefixes of wrappers and holders do not count, names are those of `b` without them.

    constants: patterns of names that are not meant to move.

    Raises:
        ValueError: names of one file differ in their wrappers only.
    """
    return compare(a.tensors, b.tensors, constants)


def compare(a: Mapping[str, Tensor], b: Mapping[str, Tensor], constants: Sequence[str] = ()) -> Difference:
    """The same of tensors by name."""
    partners = belong_together(a, b)
    origin = {partner: name for name, partner in partners.items()}
    found = Difference([], [name for name in a if name not in partners], [name for name in b if name not in origin])
    held = all(bare(name).startswith(MODEL_PREFIX) for name in b)
    for name, after in b.items():
        if name not in origin:
            continue
        before, title = a[origin[name]], bare(name).removeprefix(MODEL_PREFIX if held else "")
        if before.shape == after.shape:
            named = any(fnmatchcase(known, pattern) for known in (name, title) for pattern in constants)
            constant = named or not after.numel()  # nothing of an empty one can move
            found.changes.append(_change(title, before, after, constant))
        else:
            found.other_shape.append((title, list(before.shape), list(after.shape)))
    return found


def _change(name: str, a: Tensor, b: Tensor, constant: bool) -> Change:
    shape, dtypes = list(b.shape), [str(tensor.dtype).removeprefix("torch.") for tensor in (a, b)]
    counts = not any(tensor.is_floating_point() or tensor.is_complex() for tensor in (a, b))
    not_finite = 0 if counts else int((~torch.isfinite(_exact(b))).sum())
    if not b.numel() or (a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))):
        return Change(name, shape, dtypes, 0.0, 0.0, 0.0, True, not_finite, counts, constant)
    before, after = _exact(a), _exact(b)
    moved = after - before
    norm, length = float(torch.linalg.vector_norm(before)), float(torch.linalg.vector_norm(moved))
    finite = math.isfinite(norm) and not not_finite
    return Change(
        name,
        shape,
        dtypes,
        relative=length / norm if finite and norm > 0 else None,
        largest=float(moved.abs().max()) if finite else None,
        share=int((before != after).sum()) / moved.numel(),
        equal=False,
        not_finite=not_finite,
        counts=counts,
        constant=constant,
    )


def _exact(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _hardly(change: Change) -> bool:
    return change.relative is not None and change.relative < HARDLY


def _range(changes: Sequence[Change]) -> str:
    moved = sorted((c.relative, c.name) for c in changes if not c.equal and c.relative is not None)
    if not moved:
        return ""
    (least, least_name), (most, most_name) = moved[0], moved[-1]
    if len(moved) == 1:
        return f", by {share(least)} of the norm"
    return f", by {share(least)} ({least_name}) to {share(most)} ({most_name}) of their norm"


def share(value: float) -> str:
    """A share of 1 in percent with two digits; in powers of ten where it is tiny or huge."""
    percent = 100 * value
    if percent == 0:
        return "0 %"
    if 1e-3 <= percent < 99.5:
        return f"{percent:.2g} %"
    return f"{percent:.0f} %" if 99.5 <= percent < 1e5 else f"{percent:.1e} %"


def _listed(changes: Sequence[Change]) -> str:
    names = [change.name for change in changes]
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
