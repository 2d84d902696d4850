"""What a plain PyTorch loop does, turned into the events that the monitor knows.

A batch begins with a forward pass of the model under autograd that follows a backward pass or an update; it ends where the
next one begins. What is called without autograd (an evaluation) is left alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from statewise.health.announcer import Announcer
from statewise.health.findings import Finding, UnhealthyTraining
from statewise.health.monitor import HealthMonitor
from statewise.health.plain import calls
from statewise.health.plain.forward_passes import ForwardPasses
from statewise.health.probes.causality import EarlierOutputs
from statewise.health.probes.dependence import AlikeTargets, Ignored
from statewise.health.probes.mixing import RowsAlone
from statewise.health.probes.reduction import Halves
from statewise.health.probes.repetition import Repeated, Reseeded
from statewise.health.probes.stage import Stage
from statewise.health.probes.sub_batch import SubBatch
from statewise.health.setting import Schedule, Setting
from statewise.health.signals import Influence, Signal, SupervisionPair
from statewise.health.steps.update_hooks import UpdateHooks
from statewise.health.verdict import primary

# What a training step, or a forward pass, of a copy would show.
_OF_A_STEP: tuple[type[Signal], ...] = (Influence, SupervisionPair, Halves, Ignored, AlikeTargets)
_OF_A_PASS: tuple[type[Signal], ...] = (RowsAlone, SubBatch, Repeated, Reseeded, EarlierOutputs)
_NO_STEP = "a loop of your own has no training_step that could be tried on a copy"
_NOT_CALLED = "the whole model was not called in training mode, so no forward pass could be tried on a copy"


class Watch(calls.Listener):
    """Made by `watch`; holds what was found, within the block and after it."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        monitor: HealthMonitor,
        announcer: Announcer,
        setting: Setting,
        schedulers: Sequence[Any],
        read_every: int,
    ) -> None:
        self.monitor = monitor
        self._model = model
        self._optimizers = list(optimizers)
        self._announcer = announcer
        numbers = {id(optimizer): number for number, optimizer in enumerate(self._optimizers)}
        schedules = tuple(Schedule(s, numbers.get(id(getattr(s, "optimizer", None)))) for s in schedulers)
        self._setting = replace(setting, schedules=schedules)
        self._read_every = max(read_every, 1)
        self._passes: ForwardPasses | None = None
        self._hooks: UpdateHooks | None = None
        self._begin()

    def _begin(self) -> None:
        self.steps = 0
        # The batch: is there one, did a backward pass or an update come since, was it begun in evaluation mode, or by a
        # backward pass alone?
        self._open = self._used = self._updated = self._in_evaluation = self._unannounced = False
        # Was the backward pass now running told, and has one come since the last update?
        self._heard = self._unapplied = False
        self._probed = self._probing = False
        # Optimizers whose update was announced, and those that are inside a step that calls a closure.
        self._announced: set[int] = set()
        self._closing: list[Optimizer] = []
        self._announcer.begin()

    # -- the block -----------------------------------------------------------------------------------------------

    def __enter__(self) -> "Watch":
        """Look at what can be seen before anything runs, and listen."""
        if self._announcer.policy == "off":
            return self
        self._begin()
        # A scheduler leaves its mark on the groups of its optimizer.
        marked = {n for n, o in enumerate(self._optimizers) if any("initial_lr" in group for group in o.param_groups)}
        planned = {schedule.optimizer for schedule in self._setting.schedules if schedule.optimizer is not None}
        self._setting = replace(self._setting, scheduled=frozenset(marked | planned))
        found = self.monitor.start(self._model, self._optimizers, self._setting, 0)
        for kind in _OF_A_STEP:
            self.monitor.cannot(kind, _NO_STEP)
        for kind in _OF_A_PASS:
            self.monitor.cannot(kind, _NOT_CALLED)
        try:
            self._act(found)
            self._hooks = UpdateHooks(self._optimizers, self._begin_update, self._end_update)
            self._passes = ForwardPasses(self._model, self._forward)
            calls.listen(self)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Judge what is left, let go of everything, and say the verdict."""
        if self._announcer.policy == "off":
            return
        try:
            if error is None:
                found = self._end_batch() + self.monitor.end_epoch(self.steps)
                self._act(found)
        finally:
            self._close(together=error is None)
        # A loop that broke down has no good health to report.
        if error is None or (not isinstance(error, UnhealthyTraining) and self.report()["verdict"] != "healthy"):
            self._announcer.conclude(self.report(), len(self.monitor.inventory.parameters), self.steps)

    def _close(self, together: bool = False) -> None:
        calls.leave(self)
        if self._passes is not None:
            self._passes.remove()
            self._passes = None
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
        self.monitor.close(together)

    # -- what is known -------------------------------------------------------------------------------------------

    @property
    def findings(self) -> list[Finding]:
        """What was found, the worst first; what another finding explains is left out."""
        return primary(self.monitor.findings)

    def report(self) -> dict[str, Any]:
        """{"verdict", "findings", "checks"}: plain values, primary causes only."""
        if self._announcer.policy == "off":
            return {"verdict": "not_checked", "findings": [], "checks": []}
        return self.monitor.report()

    # -- batches -------------------------------------------------------------------------------------------------

    def _forward(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a batch begins with this forward pass."""
        # A batch that began in evaluation mode was an evaluation, if training mode follows before any backward pass.
        evaluated = self._open and self._in_evaluation and not self._used and part.training
        if self._probing or (self._open and (self._closing or not self._used) and not evaluated):
            return False
        batch = args[0] if len(args) == 1 and not kwargs else (*args, *kwargs.values())
        found = [] if evaluated else self._end_batch()
        if part is self._model and part.training and not self._probed:
            found += self._probe(args, kwargs)
        self._act(found + self._begin_batch(batch, evaluation=not part.training))
        return True

    def _probe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Finding]:
        self._probed = self._probing = True
        try:
            return self.monitor.probe(args, kwargs, Stage(shared=[self, self.monitor, *self._optimizers]), self.steps)
        finally:
            self._probing = False

    def _begin_batch(self, batch: Any, evaluation: bool = False) -> list[Finding]:
        self._open, self._in_evaluation = True, evaluation
        self._used = self._updated = self._unannounced = False
        if self._hooks is not None and not self._closing:
            self._hooks.reset()
        return self.monitor.begin_batch(batch, self.steps)

    def _end_batch(self) -> list[Finding]:
        if not self._open:
            return []
        self._open = False
        self._announced.clear()
        if self._passes is not None:
            self._passes.narrow()
        return self.monitor.end_batch(self.steps)

    # -- backward passes (calls.Listener) ------------------------------------------------------------------

    def before_backward(self, tensors: tuple[Any, ...], inputs: tuple[Any, ...] | None) -> None:
        """The graph still stands."""
        self._heard = not self._probing and (inputs is None or self._asks_for_parameters(inputs))
        if not self._heard:
            return
        found: list[Finding] = []
        if not self._closing and self._unannounced and self._used:
            found += self._end_batch()
        if not self._open:
            # No forward pass was heard: it is compiled, or of a part that never began a batch before.
            found += self._begin_batch(None)
            self._unannounced = True
            if self.monitor.listening.flow is not None:
                self.monitor.listening.flow.detach()
            if self._passes is not None:
                self._passes.search()
        if self._unapplied and not self._closing and self._cleared() and self.monitor.setting.accumulate > 1:
            # Gradients of the batch before were thrown away: nothing accumulates here.
            self._set(accumulate=1)
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                found += self.monitor.backward(tensor)
        self._act(found)

    def after_backward(self, inputs: tuple[Any, ...] | None) -> None:
        """Gradients are there."""
        if self._probing or not self._heard:
            return
        self._act(self.monitor.after_backward())
        if self._closing:
            self._announce(self._closing[-1])
        else:
            self._used = self._unapplied = True

    def _cleared(self) -> bool:
        return all(p.grad is None for o in self._optimizers for group in o.param_groups for p in group["params"])

    def _asks_for_parameters(self, inputs: tuple[Any, ...]) -> bool:
        """Whether autograd.grad stands for the backward pass: later ones (a penalty, a probe) are not the loop's."""
        if self.steps:
            return False
        known = {fact.key for fact in self.monitor.inventory.parameters}
        return any(id(tensor) in known for tensor in inputs)

    # -- updates -------------------------------------------------------------------------------------------------

    def before_clip(self, parameters: list[Tensor]) -> None:
        """The last moment at which gradients are what backward made of them."""
        clipped = {id(parameter) for parameter in parameters}
        for optimizer in self._optimizers:
            if any(id(tensor) in clipped for group in optimizer.param_groups for tensor in group["params"]):
                self.monitor.before_clipping(optimizer)

    def before_scaled_step(self, optimizer: Optimizer) -> None:
        """A GradScaler may skip."""
        if not self.monitor.setting.scaler:
            self._set(scaler=True)
        self._before_scaled = self.steps

    def after_scaled_step(self, optimizer: Optimizer) -> None:
        """It did, if nothing was updated."""
        if self.steps == self._before_scaled and any(known is optimizer for known in self._optimizers):
            self._used = True
            self._announce(optimizer)
            self._announced.discard(id(optimizer))

    def _announce(self, optimizer: Optimizer) -> None:
        if id(optimizer) not in self._announced:
            self._announced.add(id(optimizer))
            self._act(self.monitor.before_update(optimizer, self.steps))

    def _begin_update(self, optimizer: Optimizer, closure: bool) -> None:
        if not closure:
            self._announce(optimizer)
            return
        if self._updated:
            self._act(self._end_batch())
        self._closing.append(optimizer)

    def _end_update(self, optimizer: Optimizer) -> None:
        self._closing = [other for other in self._closing if other is not optimizer]
        self._announced.discard(id(optimizer))
        self._used = self._updated = True
        self._unapplied = False
        self.steps += 1
        on_cpu = all(p.device.type == "cpu" for group in optimizer.param_groups for p in group["params"][:1])
        read = on_cpu or self.steps % self._read_every == 0
        self._act(self.monitor.after_update(optimizer, self.steps, read))

    # -- inside --------------------------------------------------------------------------------------------------

    def _set(self, **changes: Any) -> None:
        self._setting = replace(self._setting, **changes)
        self.monitor.set_setting(self._setting)

    def _act(self, found: Sequence[Finding]) -> None:
        if not found:
            return
        self._announcer.say(found)
        error = self._announcer.fatal(found)
        if error is not None:
            raise error
