"""The health of one run: fed by a training loop's events, it asks the rules and keeps the findings. Knows no Trainer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from statewise.health.attributes import scan_attributes
from statewise.health.declared import resolve
from statewise.health.findings import Finding, Severity
from statewise.health.first_step import FirstStep
from statewise.health.flow import Call, FlowRecorder
from statewise.health.ledger import SHORTEST_RUN
from statewise.health.loop import LoopCounter
from statewise.health.loss_log import LossLog
from statewise.health.observer import Observer, Run
from statewise.health.observers import OBSERVERS
from statewise.health.parameters import IdentityWatch, take_inventory
from statewise.health.readings import Readings
from statewise.health.rehearsal import CannotRehearse, Stage, rehearse
from statewise.health.rule import Rule
from statewise.health.rules import KINDS, RULES
from statewise.health.setting import Setting
from statewise.health.signals import (
    Facts,
    Influence,
    LearningRate,
    LearningRates,
    Presence,
    Signal,
    Steps,
    Supervision,
    SupervisionPair,
    Wiring,
)
from statewise.health.tracks import suspicious, tracks
from statewise.health.updates import UpdateMonitor
from statewise.health.verdict import explains, report

_PRESENCE_BATCHES = 20
_RANK = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
_CONCERNED: dict[type[Signal], list[tuple[int, Rule]]] = {}
for _index, _rule in enumerate(RULES):
    _CONCERNED.setdefault(_rule.needs, []).append((_index, _rule))


class HealthMonitor:
    """Collects facts from the events of a training loop and returns the findings that are new at each of them.

    Args:
        frozen: patterns of parameters that are meant not to train.
        constants: patterns of tensors that are meant to shape the loss without training.
        conditional: patterns of parameters (or modules) that take part in some batches only.
    """

    def __init__(self, frozen: Sequence[str] = (), constants: Sequence[str] = (), conditional: Sequence[str] = ()) -> None:
        self.patterns = {"frozen": tuple(frozen), "constants": tuple(constants), "conditional": tuple(conditional)}
        self.findings: list[Finding] = []
        self._ran: set[int] = set()
        self._unable: dict[type[Signal], str] = {}
        self.observers: list[Observer] = []
        self._memories: dict[str, dict[str, Any]] = {}
        self._ledgers: dict[str, Any] = {}
        self._supervision: dict[str, Supervision] = {}
        self.ask_again: set[str] = set()  # steps whose last batch could not show what the loss looks at
        self.updates: list[UpdateMonitor] = []
        self.flow: FlowRecorder | None = None
        self.run: Run | None = None

    # -- the run begins ------------------------------------------------------------------------------------------

    def start(self, module: nn.Module, optimizers: Sequence[Optimizer], setting: Setting, step: int) -> list[Finding]:
        """Take the inventory and judge what can be judged before anything runs."""
        self.module, self.optimizers, self.setting = module, list(optimizers), setting
        self.run = None
        self._loop = LoopCounter(setting.accumulate, setting.manual, setting.scaler)
        self._listen_for = 1
        self._judged: set[int] = set()
        self.reached: frozenset[str] | None = None
        self._calls: tuple[Call, ...] = ()
        self.first_step = FirstStep()
        self.losses = LossLog(setting.accumulate)
        self.updates = []
        self.observers = [observer() for observer in OBSERVERS]
        for observer in self.observers:
            if memory := self._memories.get(type(observer).__name__):
                observer.load_state_dict(memory)
        found = self._take(step)
        self.run = Run(module, self.optimizers, setting, Readings(), self.inventory, self.declared, step)
        return found + self._tell("start")

    def _take(self, step: int) -> list[Finding]:
        self._keep_memories()
        self.inventory = take_inventory(self.module, self.optimizers, self.setting.scheduled)
        self.candidates = scan_attributes(self.module, self.setting.skip, self.setting.opaque)
        self.hidden = tuple(fact for fact, _ in self.candidates.values())
        self.declared = resolve(self.inventory, [fact.name for fact in self.hidden], **self.patterns)
        self._watch = IdentityWatch(self.module, self.optimizers)
        names = {fact.key: fact.name for fact in self.inventory.parameters}
        norms = self.updates[0].bias_before_norm if self.updates else frozenset()
        self.updates = [UpdateMonitor(optimizer, names) for optimizer in self.optimizers]
        for number, update in enumerate(self.updates):
            update.bias_before_norm = norms
            if str(number) in self._ledgers:
                update.load_state_dict(self._ledgers[str(number)])
        if self.run is not None:
            self.run.inventory, self.run.declared = self.inventory, self.declared
        return self._judge(step, Wiring())

    # -- one batch -----------------------------------------------------------------------------------------------

    def begin_batch(self, batch: Any, step: int) -> list[Finding]:
        """Before the training step: look for replaced objects, and listen to the modules if a question is open."""
        found = self._take(step) if self._watch.changed() else []
        if self._listen_for > 0:
            self._listen_for -= 1
            self._forget_graph()
            self.flow = FlowRecorder(self.module, batch)
        self._at(step).batch += 1
        return found + self._tell("begin_batch", batch)

    def rehearse(self, step_name: str, batch: Any, batch_idx: int, stage: Stage, step: int) -> list[Finding]:
        """Ask a copy of the module: once before the first training step, once at the first validation batch."""
        training = step_name == "training_step"
        self.ask_again.discard(step_name)
        candidates = self.candidates if training else {}
        # What asks for gradients already is seen in the real graph; parameters of hidden modules that ask for none are
        # a reference on purpose.
        candidates = {k: v for k, v in candidates.items() if not v[0].requires_grad and v[0].kind in {"tensor", "buffer"}}
        try:
            outcome = rehearse(self.module, step_name, batch, batch_idx, candidates, stage)
        except CannotRehearse as error:
            for kind in (Influence, SupervisionPair) if training else (SupervisionPair,):
                self._unable[kind] = f"a trial of {step_name} on a copy failed: {error}"
            return []
        found: list[Finding] = []
        if training:
            found += self._judge(step, Influence(outcome.shaping))
        if outcome.supervision is None:
            self._unable[SupervisionPair] = outcome.why
            if outcome.ask_again:
                self.ask_again.add(step_name)
            return found
        self._supervision[step_name] = outcome.supervision
        train, validation = self._supervision.get("training_step"), self._supervision.get("validation_step")
        if train is not None and validation is not None:
            pair = SupervisionPair(train, validation)
            found += self._judge(step, pair)
        return found

    def backward(self, loss: Tensor) -> list[Finding]:
        """Before a backward pass: the graph still stands."""
        self._loop.backward()
        if len(self._judged) < len(self.optimizers) or self.flow is not None:
            self.first_step.add(loss)
        self.losses.returned(loss)
        return self._tell("backward", loss)

    def after_backward(self) -> list[Finding]:
        """After a backward pass: which gradients exist."""
        if len(self._judged) < len(self.optimizers):
            self.first_step.note_gradients(self.module)
        return self._tell("after_backward")

    def before_update(self, optimizer: Optimizer, step: int) -> list[Finding]:
        """Gradients are there, values are still old: the moment of truth at the first step."""
        number = self._number(optimizer)
        if number is None:
            return []
        self._loop.attempt()
        found = self._judge_first(number, step)
        self.updates[number].before()
        self._at(step)
        return found + self._tell("before_update", number)

    def after_update(self, optimizer: Optimizer, step: int, read: bool) -> list[Finding]:
        """The update is made. read: transfer and judge now (each step on a CPU, now and then on an accelerator)."""
        number = self._number(optimizer)
        if number is None:
            return []
        found = self._judge_first(number, step)
        update = self.updates[number]
        update.after()
        self._loop.update(with_gradients=not bool(update.pending[-1].absent.all()) if update.names else True)
        self._at(step)
        found += self._tell("after_update", number)
        if read:
            found += self._read(number, step)
        return found

    def end_batch(self, step: int) -> list[Finding]:
        """After the training step and whatever it updated."""
        self._loop.batches += 1
        if self.flow is not None and self.flow.attached:
            self.flow.detach()
            self._calls = self.flow.calls(self.first_step.graphs)
        if len(self._judged) >= len(self.optimizers):
            self._forget_graph()
        for update in self.updates:
            update.skip()
        found = self._judge(step, self.losses.end_batch())
        self._at(step)
        found += self._tell("end_batch")
        if self._loop.batches == _PRESENCE_BATCHES:
            found += self._judge_presence(step)
        return found + self._judge(step, self._loop.facts())

    def end_epoch(self, step: int) -> list[Finding]:
        """All pending readings are judged; a module that was silent for a whole epoch is named."""
        self._at(step)
        found = [finding for number in range(len(self.updates)) for finding in self._read(number, step)]
        found += self._tell("end_epoch")
        self._loop.epoch_ended = True
        found += self._judge_presence(step)
        return found + self._judge(step, self._loop.facts())

    def close(self) -> None:
        """Remove every hook and let go of graphs and copies."""
        if self.updates:
            self._forget_graph()
        for observer in self.observers:
            observer.close()
        if self.run is not None:
            self.run.readings.clear()
        self._keep_memories()

    # -- what is known -------------------------------------------------------------------------------------------

    def add(self, finding: Finding) -> bool:
        """Keep a finding unless it was said before or is declared intended; True if it is new."""
        if self._accepted(finding) or any(_covers(old, finding) or explains(old, finding) for old in self.findings):
            return False
        # A later, worse word on the same thing replaces the earlier one.
        self.findings = [old for old in self.findings if not _covers(finding, old)]
        self.findings.append(finding)
        return True

    def report(self) -> dict[str, Any]:
        """Verdict, findings and checks."""
        checks = []
        unable = self._unable | {kind: why for observer in self.observers for kind, why in observer.unable.items()}
        for kind in KINDS:
            rules = [(index, rule) for index, rule in enumerate(RULES) if rule.kind is kind]
            waiting = [rule for index, rule in rules if index not in self._ran]
            ran = len(waiting) < len(rules)
            why = "" if ran else unable.get(waiting[0].needs, waiting[0].needs.waiting)
            checks.append({"name": kind.id, "ran": ran, "why": why})
        return report(self.findings, checks)

    def state_dict(self) -> dict[str, Any]:
        """Plain values: findings, what was usual for each parameter."""
        self._keep_memories()
        return {
            "findings": [finding.as_dict() for finding in self.findings],
            "ledgers": self._ledgers,
            "observers": self._memories,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over from a run that was interrupted."""
        self.findings = [Finding.from_dict(values) for values in state["findings"]]
        self._ledgers = dict(state["ledgers"])
        self._memories = dict(state.get("observers", {}))

    # -- inside --------------------------------------------------------------------------------------------------

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
        found: list[Finding] = []
        for observer in self.observers:
            for signal in getattr(observer, event)(self.run, *news):
                found += self._judge(self.run.step, signal)
        return found

    def _judge(self, step: int, *signals: Signal | None) -> list[Finding]:
        """Ask the rules that some news concerns."""
        found: list[Finding] = []
        for signal in signals:
            if signal is None:
                continue
            facts = Facts(step, self.inventory, self.declared, self.hidden)
            for index, rule in _CONCERNED.get(type(signal), ()):
                self._ran.add(index)
                found += [finding for finding in rule.check(facts, signal) if self.add(finding)]
        return found

    def _number(self, optimizer: Optimizer) -> int | None:
        """Which of the fit's optimizers this is; None for one that a module keeps for itself."""
        return next((number for number, known in enumerate(self.optimizers) if known is optimizer), None)

    def _judge_first(self, number: int, step: int) -> list[Finding]:
        """Judge the first update of an optimizer, once, while its gradients are there."""
        if number in self._judged:
            return []
        self._judged.add(number)
        # Parameters that the forward pass itself replaced.
        found = self._take(step) if self._watch.changed() else []
        if self.flow is not None:
            self._calls = self.flow.calls(self.first_step.graphs)
            norms = frozenset(f"{name}.bias" for name in self.flow.feeding_norms())
            for update in self.updates:
                update.bias_before_norm |= norms
        update = self.updates[number]
        held = frozenset(n for n, p in zip(update.names, update.parameters, strict=True) if p.requires_grad)
        first = self.first_step.facts(
            self.module, held, self.inventory, self.candidates, self._calls, self.flow, self.setting.manual
        )
        self.reached = (self.reached or frozenset()) | first.reached | first.with_gradient
        return found + self._judge(step, first, self.losses.compare())

    def _read(self, number: int, step: int) -> list[Finding]:
        update = self.updates[number]
        found = self._judge(step, *self.run.readings.read()) if self.run is not None else []
        if not update.pending:
            return found
        update.flush()
        found += self._judge(step, self._rates(number, update))
        if any(not parameter.requires_grad for parameter in update.parameters):
            # Switched off during the run: the wiring rules say what it means.
            return found + self._take(step)
        # One more step without a gradient may be a finding: see in the next batch what becomes of the modules.
        if ((update.ledger.none_run == SHORTEST_RUN - 1) & (update.ledger.alive > 0)).any():
            self._listen_for = 1
        # Rules on steps have nothing to look at: that is an answer too.
        if update.ledger.steps >= SHORTEST_RUN:
            self._ran.update(index for index, _ in _CONCERNED[Steps])
        if not len(suspicious(update)):
            return found
        chosen = tracks(update, self._settled())
        fresh = self.flow is not None and self.flow.attached
        if self.flow is not None and fresh:
            self._calls = self.flow.calls(self.first_step.graphs)
        elif any(track.none_unusual and track.ever_alive for track in chosen):
            self._listen_for = 1
        alive = frozenset(name for i, name in enumerate(update.names) if update.ledger.none_run[i] == 0)
        steps = Steps(optimizer=number, tracks=chosen, calls=self._calls, fresh=fresh, reached=alive)
        return found + self._judge(step, steps)

    def _rates(self, number: int, update: UpdateMonitor) -> LearningRates:
        if not update.lr_zero_run.any():
            return LearningRates(())
        groups = [index for index, group in enumerate(self.inventory.groups) if group.optimizer == number]
        rates = tuple(
            LearningRate(
                group=group,
                zero_run=int(run),
                scheduled=number in self.setting.scheduled,
                ever_positive=bool(positive),
            )
            for group, run, positive in zip(groups, update.lr_zero_run, update.lr_positive, strict=False)
        )
        return LearningRates(rates)

    def _judge_presence(self, step: int) -> list[Finding]:
        silent = {
            name
            for update in self.updates
            for index, name in enumerate(update.names)
            if update.ledger.steps > 0
            and update.ledger.none_total[index] == update.ledger.steps
            and update.parameters[index].requires_grad
        }
        presence = Presence(self._loop.batches, self._loop.epoch_ended, frozenset(silent - self._settled()))
        return self._judge(step, presence)

    def _settled(self) -> set[str]:
        """Parameters of which something is said already."""
        return {name for f in self.findings if f.severity is not Severity.INFO for name in f.parameters}

    def _accepted(self, finding: Finding) -> bool:
        return self.declared.accepts(finding.id, finding.parameters)

    def _forget_graph(self) -> None:
        if self.flow is not None:
            self.flow.clear()
        self.flow = None
        self.first_step.clear()

    def _keep_memories(self) -> None:
        for number, update in enumerate(self.updates):
            update.flush()
            self._ledgers[str(number)] = update.state_dict()
        for observer in self.observers:
            if memory := observer.state_dict():
                self._memories[type(observer).__name__] = memory


def _covers(said: Finding, new: Finding) -> bool:
    """Whether `new` says nothing that `said` did not: the same id, no worse, about nothing else."""
    if said.id != new.id or _RANK[new.severity] < _RANK[said.severity]:
        return False
    if not new.parameters or not said.parameters:
        subject = ("name", "place", "pattern", "key")
        same = all(said.evidence.get(key) == new.evidence.get(key) for key in subject)
        return same and said.parameters == new.parameters
    return set(new.parameters) <= set(said.parameters)
