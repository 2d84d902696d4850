"""What is known about one run, and how news of it become findings: all of the monitor that is no event."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from statewise.health.audience import Audience
from statewise.health.findings import Finding
from statewise.health.graph.listening import Listening
from statewise.health.identities import Identities
from statewise.health.judging import Judging
from statewise.health.observer import Run
from statewise.health.observers.loss_values import LossValues
from statewise.health.parameters import Inventory
from statewise.health.probes.rehearsal import Rehearsal
from statewise.health.setting import Setting
from statewise.health.signals import Signal, Steps, Wiring
from statewise.health.steps.attention import Attention
from statewise.health.steps.duty import Duty
from statewise.health.steps.loop import LoopCounter
from statewise.health.steps.movement import Movement, MovementLog
from statewise.health.steps.updates import UpdateMonitor
from statewise.health.verdict import report
from statewise.parallel.shards import over_all


class Knowledge:
    """Findings, memories, and who is who; `start` of the monitor fills in the rest.

    Args:
        frozen: patterns of parameters that are meant not to train.
        constants: patterns of tensors that are meant to shape the loss without training.
        conditional: patterns of parameters (or modules) that take part in some batches only.
        causal: patterns of modules whose output at a time step must not depend on later inputs.
    """

    module: nn.Module
    optimizers: list[Optimizer]
    setting: Setting
    _identities: Identities
    _loop: LoopCounter

    def __init__(
        self,
        frozen: Sequence[str] = (),
        constants: Sequence[str] = (),
        conditional: Sequence[str] = (),
        causal: Sequence[str] = (),
    ) -> None:
        self.patterns = {
            "frozen": tuple(frozen),
            "constants": tuple(constants),
            "conditional": tuple(conditional),
            "causal": tuple(causal),
        }
        self.run: Run | None = None
        self._sharded = False
        self.updates: list[UpdateMonitor] = []
        self.ask_again: set[str] = set()  # steps whose last batch could not show what the loss looks at
        self.attention = Attention()
        self.listening = Listening()
        self._audience = Audience()
        self._judging = Judging()
        self._rehearsal = Rehearsal()
        self._movement = MovementLog()
        self._memories: dict[str, dict[str, Any]] = {}
        self._ledgers: dict[str, Any] = {}

    @property
    def findings(self) -> list[Finding]:
        """All that was found so far."""
        return self._judging.findings

    @findings.setter
    def findings(self, findings: list[Finding]) -> None:
        self._judging.findings = findings

    @property
    def inventory(self) -> Inventory:
        """Who is who by now."""
        return self._identities.inventory

    @property
    def duty(self) -> Duty:
        """Which steps are watched."""
        return self.attention.duty

    def set_setting(self, setting: Setting) -> None:
        """What the loop is like, as far as it is known by now."""
        self.setting = setting
        self.attention.duty.planned = setting.planned_steps
        self._loop.accumulate = setting.accumulate
        if self.run is not None:
            self.run.setting = setting

    def cannot(self, signal: type[Signal], why: str) -> None:
        """This kind of news will not come, for a reason that only the caller knows."""
        self._judging.unable[signal] = why

    def add(self, finding: Finding) -> bool:
        """Keep a finding unless it was said before or is declared intended; True if it is new."""
        return self._judging.add(finding, self._identities.declared)

    def lost_its_loss(self) -> bool:
        """Whether a loss was NaN or infinite since this was asked last."""
        watches = [observer for observer in self._audience.observers if isinstance(observer, LossValues)]
        lost = any(watch.no_number for watch in watches)
        for watch in watches:
            watch.no_number = False
        return lost

    def movement(self) -> Movement:
        """How far each block of the module has come, and how much it moved in the last step that was compared."""
        return self._movement.now(self.run.step if self.run is not None else 0, self.updates)

    def report(self) -> dict[str, Any]:
        """Verdict, findings, checks, and how the blocks moved over time."""
        checks = self._judging.checks(self._audience.unable)
        return report(self.findings, checks) | {"movement": self._movement.as_list()}

    def state_dict(self) -> dict[str, Any]:
        """Plain values: findings, what was usual for each parameter."""
        self._keep_memories()
        return {
            "findings": [finding.as_dict() for finding in self.findings],
            "ledgers": self._ledgers,
            "observers": self._memories,
            "movement": self._movement.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over from a run that was interrupted."""
        self.findings = [Finding.from_dict(values) for values in state["findings"]]
        self._ledgers = dict(state["ledgers"])
        self._memories = dict(state.get("observers", {}))
        if "movement" in state:
            self._movement.load_state_dict(state["movement"])

    def _take(self, step: int) -> list[Finding]:
        """Something is another object now, or was switched off."""
        self._keep_memories()
        self._identities.take(self.setting)
        return self._follow(step)

    def _follow(self, step: int) -> list[Finding]:
        """The updates of the parameters and groups that there are now."""
        names = {fact.key: fact.name for fact in self.inventory.parameters}
        norms = self.updates[0].bias_before_norm if self.updates else frozenset()
        self.updates = [UpdateMonitor(optimizer, names) for optimizer in self.optimizers]
        for number, update in enumerate(self.updates):
            update.bias_before_norm = norms
            if str(number) in self._ledgers:
                update.load_state_dict(self._ledgers[str(number)])
            update.watching = self.attention.duty.watching
        self.attention.duty.again()
        if not all(map(over_all, self.module.parameters())):
            self.cannot(Steps, "parameters are cut over processes in another way than along their first axis over all of them")
        if self.run is not None:
            self.run.inventory, self.run.declared = self.inventory, self._identities.declared
            self.run.updates = self.updates
            self._movement.follow(self.inventory, self.module)
        return self._judge(step, Wiring())

    def _retake(self, step: int) -> list[Finding]:
        # Told before the wiring is judged: what it explains is then not said again.
        batch = self.run.batch if self.run is not None else 0
        return self._judge(step, self._identities.recreation(self.setting, batch)) + self._take(step)

    def _changed(self) -> bool:
        """Whether anything is another object, where that is asked now."""
        batch = self.run.batch if self.run is not None else None
        return self.attention.compares(batch, self._identities.recreated) and self._identities.changed()

    def _at(self, step: int) -> Run:
        """The run that observers see, at this number of completed steps."""
        if self.run is None:
            raise RuntimeError("the monitor was not started")
        self.run.step = step
        return self.run

    def _tell(self, event: str, *news: Any) -> list[Finding]:
        """Every observer hears of an event; what it makes of it is judged."""
        if self.run is None:
            return []
        heard = self._audience.always if self.attention.quiet else self._audience.hearing
        found: list[Finding] = []
        for hears in heard[event]:
            for signal in hears(self.run, *news):
                found += self._judge(self.run.step, signal)
        return found

    def _judge(self, step: int, *signals: Signal | None) -> list[Finding]:
        """Ask the rules that some news concerns."""
        found: list[Finding] = []
        for signal in signals:
            if signal is not None:
                found += self._judging.ask(self._identities.facts(step), signal)
        return found

    def _keep_memories(self) -> None:
        for number, update in enumerate(self.updates):
            update.flush()
            self._ledgers[str(number)] = update.state_dict()
        self._memories |= self._audience.memories()
