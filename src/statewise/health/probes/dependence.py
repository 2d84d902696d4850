"""Does the loss depend on the inputs and on the targets? One row of a leaf is put in place of all its rows.

Not asked before the first update: a head that begins at zero gives the same picture.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from statewise.health.probes.rows import leaves, odd_row, repeated
from statewise.health.probes.take import Take
from statewise.health.probes.trial import Trial, Twin
from statewise.health.signals import Signal

# Most leaves asked, a forward pass each; and how often, at different steps, the answer must be the same.
_MOST_LEAVES = 6
_TIMES = 3
# Batches whose targets are all alike before that is said.
_ALIKE = 5


@dataclass(frozen=True)
class Ignored(Signal):
    """Leaves of the batch without which the loss is the same, to the last bit, at each of `steps`.

    inputs: where none of what goes into the modules matters. targets: what a prediction is compared with.
    """

    waiting: ClassVar[str] = "no optimizer step was followed by another batch"

    inputs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    loss: float = 0.0


@dataclass(frozen=True)
class AlikeTargets(Signal):
    """Targets that were one and the same value in all rows of `batches` batches running, `rows` in all.

    continuous: they are real numbers that a regression loss takes, no classes.
    """

    waiting: ClassVar[str] = "no optimizer step was followed by another batch"

    targets: tuple[str, ...] = ()
    batches: int = 0
    rows: int = 0
    value: float = 0.0
    continuous: bool = False
    shuffled: bool | None = None


@dataclass
class Dependence:
    """What was seen so far: one answer proves nothing where weights may still be at rest."""

    _steps: list[int] = field(default_factory=list)
    _inputs: list[frozenset[str]] = field(default_factory=list)
    _targets: list[frozenset[str]] = field(default_factory=list)
    settled: bool = False

    def due(self, step: int) -> bool:
        """Whether a batch at this step can say something new."""
        return not self.settled and step > 0 and step not in self._steps

    def ask(self, trial: Trial, twin: Twin, whole: Take, step: int, rows: int) -> Ignored | None:
        """The signal, once enough batches agree."""
        if whole.loss is None or whole.watcher is None:
            return None
        names, parts = zip(*leaves(trial.batch), strict=True)
        met = frozenset[int]().union(*(meeting.of for meeting in whole.comparisons(owners(twin))))
        entered = whole.watcher.entered
        asked, deaf = self._answers(trial, twin, whole.loss[1], sorted(entered | met)[:_MOST_LEAVES], parts, rows)
        if not asked:
            return None
        inputs = asked & (entered - met)
        targets = asked & met
        # A loss that depends on nothing at all is another finding, of a constant loss.
        nothing = asked <= deaf and bool(inputs) and bool(targets)
        self._steps.append(step)
        self._inputs.append(frozenset(names[i] for i in inputs) if inputs <= deaf and not nothing else frozenset())
        self._targets.append(frozenset(names[i] for i in targets & deaf) if not nothing else frozenset())
        always = [frozenset.intersection(*sets) for sets in (self._inputs, self._targets)]
        if not any(always):
            self.settled = True
            return Ignored()
        if len(self._steps) < _TIMES:
            return None
        self.settled = True
        return Ignored(tuple(sorted(always[0])), tuple(sorted(always[1])), tuple(self._steps), float(whole.loss[1].detach()))

    def _answers(
        self, trial: Trial, twin: Twin, loss: Tensor, concerned: list[int], parts: tuple[Any, ...], rows: int
    ) -> tuple[set[int], set[int]]:
        """Leaves that could be asked, and those without which the loss is the same."""
        asked: set[int] = set()
        deaf: set[int] = set()
        if not bool(torch.isfinite(loss)):
            return asked, deaf
        for number in concerned:
            leaf = parts[number]
            row = odd_row(leaf) if isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == rows else None
            if row is None:
                continue
            take = trial.play(twin, repeated(trial.batch, number, row), watch=False)
            if take.loss is not None:
                asked.add(number)
                if torch.equal(take.loss[1].detach(), loss.detach()):
                    deaf.add(number)
        return asked, deaf


@dataclass
class Alikeness:
    """Follows the targets over the first batches; `numbers` are known once a step was tried."""

    shuffled: bool | None = None
    numbers: frozenset[int] | None = None
    continuous: bool = False
    _batches: int = 0
    _rows: int = 0
    _value: float | None = None
    settled: bool = False

    def learn(self, whole: Take, twin: Twin) -> None:
        """Which leaves are targets."""
        comparisons = whole.comparisons(owners(twin))
        entered = whole.watcher.entered if whole.watcher is not None else set()
        self.numbers = frozenset[int]().union(*(meeting.of for meeting in comparisons)) - entered
        self.continuous = not any("cross_entropy" in meeting.by or "nll" in meeting.by for meeting in comparisons)

    def look(self, batch: Any) -> AlikeTargets | None:
        """Count one more batch; the signal once something differs, or once enough were alike."""
        if not self.numbers or self.settled:
            self.settled = self.settled or self.numbers is not None
            return None
        listed = list(leaves(batch))
        targets = [listed[number] for number in sorted(self.numbers) if number < len(listed)]
        first = next((leaf for _, leaf in targets if isinstance(leaf, Tensor) and leaf.numel()), None)
        alike = first is not None and all(isinstance(t, Tensor) and bool((t == first.reshape(-1)[0]).all()) for _, t in targets)
        value = float(first.reshape(-1)[0]) if first is not None else 0.0
        if not alike or len(first) < 2 or self._value not in (None, value):  # type: ignore[arg-type]
            self.settled = True
            return AlikeTargets()
        self._value = value
        self._batches += 1
        self._rows += len(first)  # type: ignore[arg-type]
        if self._batches < _ALIKE:
            return None
        real = self.continuous and all(t.is_floating_point() for _, t in targets)
        if not real and self._rows < 200 and self._batches < 20:
            return None
        self.settled = True
        return AlikeTargets(tuple(name for name, _ in targets), self._batches, self._rows, value, real, self.shuffled)


def owners(twin: Twin) -> frozenset[str]:
    """Modules with parameters of their own."""
    return frozenset(name for name, part in twin.module.named_modules() if part._parameters)
