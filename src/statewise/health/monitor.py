"""The health of one run: fed by a training loop's events, it asks the rules and keeps the findings. Knows no Trainer."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from statewise.health.attributes import scan_attributes
from statewise.health.declared import resolve
from statewise.health.findings import Finding, Severity
from statewise.health.graph.first_step import FirstStep
from statewise.health.graph.flow import Call, FlowRecorder
from statewise.health.graph.walk import walk
from statewise.health.kept import keep
from statewise.health.loss_log import LossLog
from statewise.health.observer import Observer, Run
from statewise.health.observers import OBSERVERS
from statewise.health.observers.lookahead import Lookahead
from statewise.health.parameters import IdentityWatch, take_inventory
from statewise.health.probes.forward import probe_forward
from statewise.health.probes.rehearsal import Rehearsal, Stage
from statewise.health.readings import Readings
from statewise.health.rule import Rule
from statewise.health.rules import KINDS, RULES
from statewise.health.setting import Setting
from statewise.health.signals import (
    Facts,
    LearningRate,
    LearningRates,
    Presence,
    Signal,
    Steps,
    Wiring,
)
from statewise.health.steps.duty import Duty
from statewise.health.steps.ledger import SHORTEST_RUN
from statewise.health.steps.loop import LoopCounter
from statewise.health.steps.movement import Movement, MovementLog
from statewise.health.steps.signals import Clipping, Recreated, UpdateRatios
from statewise.health.steps.tracks import ODD_STEPS, odd_ratios, suspicious, tracks
from statewise.health.steps.updates import UpdateMonitor
from statewise.health.verdict import report

_PRESENCE_BATCHES = 20
# How often a parameter may become another object before that is looked at less often, and how often then.
_RECREATIONS, _SELDOM = 5, 50
# Quiet batches in which that is looked at once, and batches after an epoch's end that are heard: a validation may have left
# something behind.
_BETWEEN, _AFTER_EPOCH = 8, 2
# Optimizer steps slept through after a quiet one: with cold caches a call is dear, however little it does.
_SLEEP = 4
# Looks at the graph of a loss: in the first batches, then at a distance that grows with the run between these two.
_NEAREST_LOOK, _FARTHEST_LOOK = 50, 1000
_REQUIRES_GRAD = attrgetter("requires_grad")
_CONCERNED: dict[type[Signal], list[tuple[int, Rule]]] = {}
for _index, _rule in enumerate(RULES):
    _CONCERNED.setdefault(_rule.needs, []).append((_index, _rule))

_EVENTS = (
    "start",
    "begin_batch",
    "backward",
    "after_backward",
    "before_update",
    "after_update",
    "end_batch",
    "end_epoch",
)

P = ParamSpec("P")
R = TypeVar("R")


def _timed(event: "Callable[Concatenate[HealthMonitor, P], R]") -> "Callable[Concatenate[HealthMonitor, P], R]":
    """What an event of every step costs goes on the account that decides how many steps are watched closely."""

    @wraps(event)
    def timed(self: "HealthMonitor", *args: P.args, **kwargs: P.kwargs) -> R:
        self.duty.enter()
        try:
            return event(self, *args, **kwargs)
        finally:
            self.duty.leave()

    return cast("Callable[Concatenate[HealthMonitor, P], R]", timed)


class HealthMonitor:
    """Collects facts from the events of a training loop and returns the findings that are new at each of them.

    Args:
        frozen: patterns of parameters that are meant not to train.
        constants: patterns of tensors that are meant to shape the loss without training.
        conditional: patterns of parameters (or modules) that take part in some batches only.
        causal: patterns of modules whose output at a time step must not depend on later inputs.
    """

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
        self.findings: list[Finding] = []
        self._ran: set[int] = set()
        self._unable: dict[type[Signal], str] = {}
        self.observers: list[Observer] = []
        self._memories: dict[str, dict[str, Any]] = {}
        self._ledgers: dict[str, Any] = {}
        self._rehearsal = Rehearsal()
        self.ask_again: set[str] = set()  # steps whose last batch could not show what the loss looks at
        self.updates: list[UpdateMonitor] = []
        self.flow: FlowRecorder | None = None
        self.run: Run | None = None
        self.duty = Duty()
        # Whether nobody but a few observers hears of this batch; whether not even they do.
        self.quiet = self.asleep = False
        self._movement = MovementLog()

    # -- the run begins ------------------------------------------------------------------------------------------

    def start(self, module: nn.Module, optimizers: Sequence[Optimizer], setting: Setting, step: int) -> list[Finding]:
        """Take the inventory and judge what can be judged before anything runs."""
        self.module, self.optimizers, self.setting = module, list(optimizers), setting
        self.run = None
        self._loop = LoopCounter(setting.accumulate, setting.manual, setting.scaler)
        self._listen_for = 1
        self._judged: set[int] = set()
        self._updated = self._rates_judged = False
        self._recreated = 0
        self._rules_on_steps = False
        self.duty = Duty()
        self.duty.planned = setting.planned_steps
        self.reached: frozenset[str] | None = None
        self._calls: tuple[Call, ...] = ()
        # Compiled modules; None where the graph has a compiled piece that belongs to none of them.
        self._opaque: frozenset[str] | None = frozenset()
        self._rehearsal = Rehearsal()
        self.first_step = FirstStep()
        self._read_values: frozenset[str] = frozenset()
        self.losses = LossLog(setting.accumulate)
        self.updates = []
        self.observers = [observer() for observer in OBSERVERS]
        # Of a dozen observers two or three hear of any one event of a step.
        self._listeners = {
            event: [getattr(o, event) for o in self.observers if getattr(type(o), event) is not getattr(Observer, event)]
            for event in _EVENTS
        }
        self._always = {event: [getattr(o, event) for o in self.observers if event in o.always] for event in _EVENTS}
        self.quiet = self.asleep = False
        self._sleep = self._slept = 0
        self._compared = -_SELDOM
        self._next_look = _NEAREST_LOOK
        for observer in self.observers:
            if memory := self._memories.get(type(observer).__name__):
                observer.load_state_dict(memory)
        found = self._take(step)
        self._movement.begin(self.inventory, module, step)
        self.run = Run(module, self.optimizers, setting, Readings(), self.inventory, self.declared, step)
        self.run.updates = self.updates
        return found + self._tell("start")

    def set_setting(self, setting: Setting) -> None:
        """What the loop is like, as far as it is known by now."""
        self.setting = setting
        self.duty.planned = setting.planned_steps
        self._loop.accumulate = setting.accumulate
        if self.run is not None:
            self.run.setting = setting

    def cannot(self, signal: type[Signal], why: str) -> None:
        """This kind of news will not come, for a reason that only the caller knows."""
        self._unable[signal] = why

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
            update.watching = self.duty.watching
        self.duty.again()
        if self.run is not None:
            self.run.inventory, self.run.declared, self.run.updates = self.inventory, self.declared, self.updates
            self._movement.follow(self.inventory, self.module)
        return self._judge(step, Wiring())

    def _retake(self, step: int) -> list[Finding]:
        """Something is another object now. Before the first forward pass that is how the run was built, later it is news."""
        before = {fact.name: fact.key for fact in self.inventory.parameters}
        inventory = take_inventory(self.module, self.optimizers, self.setting.scheduled)
        shapes = {stranger.shape for stranger in inventory.strangers}
        lost = [fact for fact in inventory.trainable if fact.group is None and fact.shape in shapes]
        names = [fact.name for fact in lost if fact.key != before.get(fact.name, fact.key)]
        self._recreated += bool(names)
        news: list[Signal] = []
        if self.run is not None and self.run.batch > 0 and names:
            # Told before the wiring is judged: what it explains is then not said again.
            self.inventory = inventory
            news.append(Recreated(tuple(names), self.run.batch, self._recreated))
        return self._judge(step, *news) + self._take(step)

    def _changed(self) -> bool:
        """Whether anything is another object. Where that happens all the time it is asked now and then."""
        every = _SELDOM if self._recreated >= _RECREATIONS else 1 if self.duty.throughout else _BETWEEN
        batch = self.run.batch if self.run is not None else every
        if batch - self._compared < every:
            return False
        self._compared = batch
        return self._watch.changed()

    # -- one batch -----------------------------------------------------------------------------------------------

    def begin_batch(self, batch: Any, step: int) -> list[Finding]:
        """Before the training step: look for replaced objects, and listen to the modules if a question is open."""
        return [] if self.sleep_on() else self._begin_batch(batch, step)

    @_timed
    def _begin_batch(self, batch: Any, step: int) -> list[Finding]:
        found = self._retake(step) if self._changed() else []
        if self._listen_for > 0:
            self._listen_for -= 1
            self._forget_graph()
            self.flow = FlowRecorder(self.module, batch)
        run = self._at(step)
        run.batch += 1
        run.flow = self.flow
        if run.batch == 2:
            # From here on a parameter that is made anew would have been seen.
            found += self._judge(step, Recreated((), run.batch, 0))
        asked, run.listen = run.listen > 0, max(run.listen - 1, 0)
        self.quiet = not (self.duty.watching or asked or self.flow is not None or len(self._judged) < len(self.optimizers))
        if self.quiet:
            found += self._tell("begin_batch", batch)
            self.quiet = run.listen == 0
            return found
        run.look = run.batch <= 2 or (run.batch <= 32 and run.batch % 4 == 0)
        if run.batch >= self._next_look:
            run.look = True
            self._next_look = run.batch + min(max(run.batch // 2, _NEAREST_LOOK), _FARTHEST_LOOK)
        return found + self._tell("begin_batch", batch)

    def sleep_on(self) -> bool:
        """A batch begins: whether it is slept through, so that its events need not be told."""
        if not self.asleep or self.run is None:
            return False
        self.asleep = self._slept < self._sleep
        self._slept += self.asleep
        self.run.batch += self.asleep
        return self.asleep

    def rehearse(self, step_name: str, batch: Any, batch_idx: int, stage: Stage, step: int) -> list[Finding]:
        """Ask a copy of the module what is open: before the first training step, at the first validation batch, and where
        `ask_again` says so.
        """
        self.ask_again.discard(step_name)
        # What asks for gradients already is seen in the real graph; parameters of hidden modules that ask for none are
        # a reference on purpose.
        candidates = {k: v for k, v in self.candidates.items() if not v[0].requires_grad and v[0].kind in {"tensor", "buffer"}}
        outcome = self._rehearsal.hold(
            self.module,
            step_name,
            batch,
            batch_idx,
            candidates,
            stage,
            # Updates at lr 0 leave every weight where it was.
            step=step if any(any(update.lr_positive) for update in self.updates) else 0,
            causal=sorted(self.declared.causal),
            processes=self.setting.world,
        )
        self._unable |= outcome.unable
        self._read_values |= outcome.read
        if outcome.ask_again:
            self.ask_again.add(step_name)
        return self._judge(step, *outcome.signals)

    def probe(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], stage: Stage, step: int) -> list[Finding]:
        """Ask a copy of the module what one forward pass can show: for loops that have no training step to rehearse."""
        candidates = {k: v for k, v in self.candidates.items() if v[0].kind in {"tensor", "buffer"}}
        signals, unable = probe_forward(
            self.module, args, kwargs, candidates=candidates, causal=sorted(self.declared.causal), stage=stage
        )
        for kind in unable:
            self.cannot(kind, unable[kind])
        return self._judge(step, *signals)

    @_timed
    def backward(self, loss: Tensor) -> list[Finding]:
        """Before a backward pass: the graph still stands."""
        if self.asleep:
            return []
        self._loop.backward()
        if self.quiet:
            return self._tell("backward", loss)
        for update in self.updates:
            update.backward()
        if len(self._judged) < len(self.optimizers) or self.flow is not None:
            self.first_step.add(loss, self.run.graph if self.run is not None else walk)
        self.losses.returned(loss)
        return self._tell("backward", loss)

    @_timed
    def after_backward(self) -> list[Finding]:
        """After a backward pass: which gradients exist."""
        if self.quiet or self.asleep:
            return []
        for update in self.updates:
            update.after_backward()
        if len(self._judged) < len(self.optimizers):
            self.first_step.note_gradients(self.module)
        return self._tell("after_backward")

    @_timed
    def before_update(self, optimizer: Optimizer, step: int) -> list[Finding]:
        """Gradients are there, values are still old: the moment of truth at the first step."""
        if self.asleep:
            return []
        number = self._number(optimizer)
        if number is None:
            return []
        self._loop.attempt()
        found = self._judge_first(number, step)
        self.updates[number].before()
        if self.quiet:
            return found
        self._at(step)
        return found + self._tell("before_update", number)

    @_timed
    def before_clipping(self, optimizer: Optimizer) -> None:
        """Its gradients are about to be clipped: for loops that announce an update only after that."""
        number = None if self.asleep else self._number(optimizer)
        if number is not None:
            self.updates[number].before()

    @_timed
    def after_update(self, optimizer: Optimizer, step: int, read: bool) -> list[Finding]:
        """The update is made. read: transfer and judge now (each step on a CPU, now and then on an accelerator)."""
        if self.asleep:
            return []
        number = self._number(optimizer)
        if number is None:
            return []
        found = self._judge_first(number, step)
        update = self.updates[number]
        update.after()
        self._loop.update(number, with_gradients=not update.empty, declined=update.declined)
        self._updated = True
        self._at(step)
        found += self._tell("after_update", number)
        if read and (not self.quiet or self._waiting(number)):
            found += self._read(number, step)
        return found

    def _waiting(self, number: int) -> bool:
        """Whether a reading would bring anything in a quiet batch."""
        run = self.run
        return any(self.updates[number].lr_zero_run) or (run is not None and run.readings.waiting) or self._pending()

    def _pending(self) -> bool:
        return any(update.pending for update in self.updates)

    @_timed
    def end_batch(self, step: int) -> list[Finding]:
        """After the training step and whatever it updated."""
        if self.asleep:
            return []
        self._loop.end_batch()
        if not self.quiet:
            if self.flow is not None and self.flow.attached:
                self.flow.detach()
                self._calls = self.flow.calls(self.first_step.graphs)
                hidden = not self.flow.compiled and any(graph.compiled for graph in self.first_step.graphs)
                self._opaque = None if hidden else frozenset(self.flow.compiled)
            if len(self._judged) >= len(self.optimizers):
                self._forget_graph()
        for number, update in enumerate(self.updates):
            if update.skip():
                self._loop.skip(number)
                self._updated = True
        made, self._updated = self._updated, False
        if made:
            suspicion = any(update.suspicion for update in self.updates)
            watching = self.duty.next(suspicion, 1 + self._slept // max(self.setting.accumulate, 1))
            self._slept = 0
            for update in self.updates:
                update.watching = watching
        found: list[Finding] = []
        if not self.quiet:
            found += self._judge(step, self.losses.end_batch())
            run = self._at(step)
            found += self._tell("end_batch")
            run.forget_graph()
        if self._loop.batches == _PRESENCE_BATCHES:
            found += self._judge_presence(step)
        if not self._loop.steady:
            return found + self._judge(step, self._loop.facts())
        if self.quiet and made and not self.duty.watching and self.run is not None and not self.run.listen:
            self.asleep, self._sleep = True, _SLEEP * max(self.setting.accumulate, 1)
        return found

    def end_epoch(self, step: int) -> list[Finding]:
        """All pending readings are judged; a module that was silent for a whole epoch is named."""
        self._at(step)
        found = [finding for number in range(len(self.updates)) for finding in self._read(number, step)]
        found += self._tell("end_epoch")
        if self.run is not None:
            self.run.listen = max(self.run.listen, _AFTER_EPOCH)
            self.asleep = False
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
            self.run.forget_graph()
        self._keep_memories()
        if self.run is not None:
            self._movement.note(self.run.step, self.updates, last=True)
            self._movement.close()
        for update in self.updates:
            update.close()

    # -- what is known -------------------------------------------------------------------------------------------

    def add(self, finding: Finding) -> bool:
        """Keep a finding unless it was said before or is declared intended; True if it is new."""
        return not self.declared.accepts(finding.id, finding.parameters) and keep(self.findings, finding)

    def movement(self) -> Movement:
        """How far each block of the module has come, and how much it moved in the last step that was compared."""
        return self._movement.now(self.run.step if self.run is not None else 0, self.updates)

    def report(self) -> dict[str, Any]:
        """Verdict, findings, checks, and how the blocks moved over time."""
        checks = []
        unable = self._unable | {kind: why for observer in self.observers for kind, why in observer.unable.items()}
        for kind in KINDS:
            rules = [(index, rule) for index, rule in enumerate(RULES) if rule.kind is kind]
            waiting = [rule for index, rule in rules if index not in self._ran]
            ran = len(waiting) < len(rules)
            why = "" if ran else unable.get(waiting[0].needs, waiting[0].needs.waiting)
            checks.append({"name": kind.id, "ran": ran, "why": why})
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
        for hears in (self._always if self.quiet else self._listeners)[event]:
            for signal in hears(self.run, *news):
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
        found = self._retake(step) if self._changed() else []
        if self.flow is not None:
            self._calls = self.flow.calls(self.first_step.graphs)
            norms = frozenset(f"{name}.bias" for name in self.flow.feeding_norms())
            for update in self.updates:
                update.bias_before_norm |= norms
        update = self.updates[number]
        held = frozenset(n for n, p in zip(update.names, update.parameters, strict=True) if p.requires_grad)
        first = self.first_step.facts(
            self.module, held, self.inventory, self.candidates, self._calls, self.setting.manual, self._read_values
        )
        self.reached = (self.reached or frozenset()) | first.reached | first.with_gradient
        return found + self._judge(step, first, self.losses.compare())

    def _read(self, number: int, step: int) -> list[Finding]:
        update = self.updates[number]
        counted = bool(update.pending)
        found: list[Finding] = []
        if self.run is not None:
            for other in self.updates:
                other.read(self.run.readings)
            found += self._judge(step, *self.run.readings.read())
        if any(update.lr_zero_run) or not self._rates_judged:
            self._rates_judged = True
            found += self._judge(step, self._rates(number, update))
        if not counted:
            return found
        self._movement.note(step, self.updates)
        if not all(map(_REQUIRES_GRAD, update.parameters)):
            # Switched off during the run: the wiring rules say what it means.
            return found + self._take(step)
        # One more step without a gradient may be a finding: see in the next batch what becomes of the modules.
        if ((update.ledger.none_run == SHORTEST_RUN - 1) & (update.ledger.alive > 0)).any():
            self._listen_for = 1
        # Rules on steps have nothing to look at: that is an answer too.
        if not self._rules_on_steps and update.ledger.steps >= SHORTEST_RUN:
            self._rules_on_steps = True
            self._ran.update(index for kind in (Steps, Clipping, UpdateRatios) for index, _ in _CONCERNED.get(kind, ()))
        if (update.runs.odd_ratio == ODD_STEPS).any():
            found += self._judge(step, odd_ratios(update))
        if update.runs.clipped:
            before, after = update.runs.clip_norms
            found += self._judge(step, Clipping(number, update.runs.clipped, before, after, update.adaptive))
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
        if not any(update.lr_zero_run):
            return LearningRates(())
        groups = [index for index, group in enumerate(self.inventory.groups) if group.optimizer == number]
        rates_now = [float(group.get("lr", 0.0)) for optimizer in self.optimizers for group in optimizer.param_groups]
        planned = self.setting.planned_steps
        step = self.run.step if self.run is not None else 0
        rates = tuple(
            LearningRate(
                group=group,
                zero_run=int(run),
                scheduled=number in self.setting.scheduled,
                ever_positive=bool(positive),
                others_positive=any(lr > 0 for index, lr in enumerate(rates_now) if index != group),
                remaining=None if planned is None else planned - step,
                foreseen=any(number in observer.foreseen for observer in self.observers if isinstance(observer, Lookahead)),
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
        silent -= self._settled()
        called = frozenset(call.name for call in self._calls)
        presence = Presence(self._loop.batches, self._loop.epoch_ended, frozenset(silent), called, self._unseen(silent))
        return self._judge(step, presence)

    def _unseen(self, names: Collection[str]) -> frozenset[str]:
        """Those of some parameters that lie in compiled modules; all of them where compiled code of no module is about."""
        if self._opaque is None:
            return frozenset(names)
        return frozenset(name for name in names if any(not path or name.startswith(f"{path}.") for path in self._opaque))

    def _settled(self) -> set[str]:
        """Parameters of which something is said already."""
        return {name for f in self.findings if f.severity is not Severity.INFO for name in f.parameters}

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
