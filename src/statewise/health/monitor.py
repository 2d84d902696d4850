"""The events of a training loop, from first to last, and what is looked at when each of them comes. Knows no Trainer."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from statewise.health.audience import Audience
from statewise.health.findings import Finding
from statewise.health.graph.first_step import FirstStep
from statewise.health.graph.registered import in_parts, note_whole_parameters
from statewise.health.graph.walk import walk
from statewise.health.identities import Identities
from statewise.health.knowledge import Knowledge
from statewise.health.loss_log import LossLog
from statewise.health.observer import Run
from statewise.health.observers import OBSERVERS
from statewise.health.observers.lookahead import Lookahead
from statewise.health.probes.forward import probe_forward
from statewise.health.probes.rehearsal import Rehearsal, Stage
from statewise.health.readings import Readings
from statewise.health.setting import Setting
from statewise.health.signals import Steps
from statewise.health.steps.attention import Attention, timed
from statewise.health.steps.ledger import SHORTEST_RUN
from statewise.health.steps.loop import LoopCounter
from statewise.health.steps.news import step_news
from statewise.health.steps.presence import presence
from statewise.health.steps.rates import learning_rates
from statewise.health.steps.signals import Clipping, Recreated, UpdateRatios

_PRESENCE_BATCHES = 20
# Batches after an epoch's end that are heard: a validation may have left something behind.
_AFTER_EPOCH = 2
_REQUIRES_GRAD = attrgetter("requires_grad")


class HealthMonitor(Knowledge):
    """Collects facts from the events of a training loop and returns the findings that are new at each of them.

    Its arguments, and what it knows between two events, are those of `Knowledge`.
    """

    # -- the run begins ------------------------------------------------------------------------------------------

    def start(self, module: nn.Module, optimizers: Sequence[Optimizer], setting: Setting, step: int) -> list[Finding]:
        """Take the inventory and judge what can be judged before anything runs."""
        self.module, self.optimizers, self.setting = module, list(optimizers), setting
        self.run = None
        self._loop = LoopCounter(setting.accumulate, setting.manual, setting.scaler)
        self._updated = self._rates_judged = self._rules_on_steps = False
        self._sharded = in_parts(module)
        self.attention = Attention(setting.planned_steps, by_count=self._sharded)
        self.reached: frozenset[str] | None = None
        self.listening.start()
        self._rehearsal = Rehearsal()
        self.first_step = FirstStep(len(self.optimizers))
        self._read_values: frozenset[str] = frozenset()
        self.losses = LossLog(setting.accumulate)
        self.updates = []
        self._audience = Audience(observer() for observer in OBSERVERS)
        self._audience.remember(self._memories)
        self._keep_memories()
        self._identities = Identities(module, self.optimizers, self.patterns, setting)
        found = self._follow(step)
        self._movement.begin(self.inventory, module, step)
        self.run = Run(module, self.optimizers, setting, Readings(), self.inventory, self._identities.declared, step)
        self.run.updates = self.updates
        return found + self._tell("start")

    # -- one batch -----------------------------------------------------------------------------------------------

    def begin_batch(self, batch: Any, step: int) -> list[Finding]:
        """Before the training step: look for replaced objects, and listen to the modules if a question is open."""
        return [] if self.sleep_on() else self._begin_batch(batch, step)

    @timed
    def _begin_batch(self, batch: Any, step: int) -> list[Finding]:
        found = self._retake(step) if self._changed() else []
        if self.listening.due:
            self._forget_graph()
            self.listening.begin(self.module, batch)
        run = self._at(step)
        run.batch += 1
        run.flow = self.listening.flow
        if run.batch == 2:
            # From here on a parameter that is made anew would have been seen.
            found += self._judge(step, Recreated((), run.batch, 0))
        asked, run.listen = run.listen > 0, max(run.listen - 1, 0)
        question = asked or self.listening.flow is not None or self.first_step.awaited
        if self.attention.stays_quiet(question):
            found += self._tell("begin_batch", batch)
            # Unless one of them wants to hear the rest of it.
            self.attention.quiet = run.listen == 0
            return found
        run.look = self.attention.looks(run.batch)
        return found + self._tell("begin_batch", batch)

    def sleep_on(self) -> bool:
        """A batch begins: whether it is slept through, so that its events need not be told."""
        if self.run is None or not self.attention.sleeps_on():
            return False
        self.run.batch += 1
        return True

    def rehearse(self, step_name: str, batch: Any, batch_idx: int, stage: Stage, step: int) -> list[Finding]:
        """Ask a copy of the module what is open: before the first training step, at the first validation batch, and where
        `ask_again` says so.
        """
        self.ask_again.discard(step_name)
        outcome = self._rehearsal.hold(
            self.module,
            step_name,
            batch,
            batch_idx,
            self._identities.tensors(without_gradient=True),
            stage,
            # Updates at lr 0 leave every weight where it was.
            step=step if any(any(update.lr_positive) for update in self.updates) else 0,
            causal=sorted(self._identities.declared.causal),
            processes=self.setting.world,
        )
        self._judging.unable |= outcome.unable
        self._read_values |= outcome.read
        if outcome.ask_again:
            self.ask_again.add(step_name)
        return self._judge(step, *outcome.signals)

    def probe(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], stage: Stage, step: int) -> list[Finding]:
        """Ask a copy of the module what one forward pass can show: for loops that have no training step to rehearse."""
        candidates, causal = self._identities.tensors(without_gradient=False), sorted(self._identities.declared.causal)
        signals, unable = probe_forward(self.module, args, kwargs, candidates=candidates, causal=causal, stage=stage)
        self._judging.unable |= unable
        return self._judge(step, *signals)

    @timed
    def backward(self, loss: Tensor) -> list[Finding]:
        """Before a backward pass: the graph still stands."""
        if self.attention.asleep:
            return []
        self._loop.backward()
        if self._sharded:
            note_whole_parameters(self.module)
        if self.attention.quiet:
            return self._tell("backward", loss)
        for update in self.updates:
            update.backward()
        if self.first_step.awaited or self.listening.flow is not None:
            self.first_step.add(loss, self.run.graph if self.run is not None else walk)
        self.losses.returned(loss)
        return self._tell("backward", loss)

    @timed
    def after_backward(self) -> list[Finding]:
        """After a backward pass: which gradients exist."""
        if self.attention.quiet or self.attention.asleep:
            return []
        for update in self.updates:
            update.after_backward()
        if self.first_step.awaited:
            self.first_step.note_gradients(self.module)
        return self._tell("after_backward")

    @timed
    def before_update(self, optimizer: Optimizer, step: int) -> list[Finding]:
        """Gradients are there, values are still old: the moment of truth at the first step."""
        if self.attention.asleep:
            return []
        number = self._number(optimizer)
        if number is None:
            return []
        self._loop.attempt()
        found = self._judge_first(number, step)
        self.updates[number].before()
        if self.attention.quiet:
            return found
        self._at(step)
        return found + self._tell("before_update", number)

    @timed
    def before_clipping(self, optimizer: Optimizer) -> None:
        """Its gradients are about to be clipped: for loops that announce an update only after that."""
        number = None if self.attention.asleep else self._number(optimizer)
        if number is not None:
            self.updates[number].before()

    @timed
    def after_update(self, optimizer: Optimizer, step: int, read: bool) -> list[Finding]:
        """The update is made. read: transfer and judge now (each step on a CPU, now and then on an accelerator)."""
        if self.attention.asleep:
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
        if read and (not self.attention.quiet or self._waiting(number)):
            found += self._read(number, step)
        return found

    def _waiting(self, number: int) -> bool:
        """Whether a reading would bring anything in a quiet batch."""
        run = self.run
        return any(self.updates[number].lr_zero_run) or (run is not None and run.readings.waiting) or self._pending()

    def _pending(self) -> bool:
        return any(update.pending for update in self.updates)

    @timed
    def end_batch(self, step: int) -> list[Finding]:
        """After the training step and whatever it updated."""
        if self.attention.asleep:
            return []
        self._loop.end_batch()
        if not self.attention.quiet:
            self.listening.end(self.first_step.graphs)
            if not self.first_step.awaited:
                self._forget_graph()
        for number, update in enumerate(self.updates):
            if update.skip():
                self._loop.skip(number)
                self._updated = True
        made, self._updated = self._updated, False
        if made:
            suspicion = any(update.suspicion for update in self.updates)
            watching = self.attention.updated(suspicion, self.setting.accumulate)
            for update in self.updates:
                update.watching = watching
        found: list[Finding] = []
        if not self.attention.quiet:
            found += self._judge(step, self.losses.end_batch())
            run = self._at(step)
            found += self._tell("end_batch")
            run.forget_graph()
        if self._loop.batches == _PRESENCE_BATCHES:
            found += self._judge_presence(step)
        if not self._loop.steady:
            return found + self._judge(step, self._loop.facts())
        if made and self.run is not None and not self.run.listen:
            self.attention.rest(self.setting.accumulate)
        return found

    def end_epoch(self, step: int) -> list[Finding]:
        """All pending readings are judged; a module that was silent for a whole epoch is named."""
        self._at(step)
        found = [finding for number in range(len(self.updates)) for finding in self._read(number, step)]
        found += self._tell("end_epoch")
        if self.run is not None:
            self.run.listen = max(self.run.listen, _AFTER_EPOCH)
            self.attention.asleep = False
        self._loop.epoch_ended = True
        found += self._judge_presence(step)
        return found + self._judge(step, self._loop.facts())

    def close(self, together: bool = True) -> None:
        """Remove every hook and let go of graphs and copies. together: all processes of the run end, at the same moment."""
        apart = self._sharded and not together
        if apart:
            for update in self.updates:
                update.drop()
        if self.updates:
            self._forget_graph()
        self._audience.close()
        if self.run is not None:
            self.run.readings.clear()
            self.run.forget_graph()
        self._keep_memories()
        if self.run is not None:
            if not apart:
                self._movement.note(self.run.step, self.updates, last=True)
            self._movement.close()
        for update in self.updates:
            update.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _number(self, optimizer: Optimizer) -> int | None:
        """Which of the fit's optimizers this is; None for one that a module keeps for itself."""
        return next((number for number, known in enumerate(self.optimizers) if known is optimizer), None)

    def _judge_first(self, number: int, step: int) -> list[Finding]:
        """Judge the first update of an optimizer, once, while its gradients are there."""
        if not self.first_step.is_due(number):
            return []
        # Parameters that the forward pass itself replaced.
        found = self._retake(step) if self._changed() else []
        self.listening.hear(self.first_step.graphs)
        norms = self.listening.biases_before_norms()
        for update in self.updates:
            update.bias_before_norm |= norms
        update = self.updates[number]
        held = frozenset(n for n, p in zip(update.names, update.parameters, strict=True) if p.requires_grad)
        first = self.first_step.facts(
            self.module,
            held,
            self.inventory,
            self._identities.candidates,
            self.listening.calls,
            self.setting.manual,
            self._read_values,
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
            foreseen = any(number in o.foreseen for o in self._audience.observers if isinstance(o, Lookahead))
            now = self.run.step if self.run is not None else 0
            rates = learning_rates(number, update, self.optimizers, self.inventory, self.setting, now, foreseen)
            found += self._judge(step, rates)
        if not counted:
            return found
        self._movement.note(step, self.updates)
        if not all(map(_REQUIRES_GRAD, update.parameters)):
            # Switched off during the run: the wiring rules say what it means.
            return found + self._take(step)
        if not self._rules_on_steps and update.ledger.steps >= SHORTEST_RUN:
            self._rules_on_steps = True
            self._judging.nothing_to_say(Steps, Clipping, UpdateRatios)
        for news in step_news(number, update, lambda: self._judging.settled, self.listening, self.first_step.graphs):
            found += self._judge(step, news)
        return found

    def _judge_presence(self, step: int) -> list[Finding]:
        return self._judge(step, presence(self.updates, self._judging.settled, self._loop, self.listening))

    def _forget_graph(self) -> None:
        self.listening.forget()
        self.first_step.clear()
