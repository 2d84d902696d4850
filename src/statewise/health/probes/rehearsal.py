"""Steps of a copy of the module, to ask what the real step cannot be asked without disturbing it.

The copy has its own parameters, buffers and attributes, and the random states are put back, so that the run afterwards is the
same to the bit. The questions are in probes/, one a file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from statewise.health.probes import causality, dependence, evaluation
from statewise.health.probes.influence import Candidates, ask
from statewise.health.probes.reading import read_as_numbers
from statewise.health.probes.rows import row_count
from statewise.health.probes.stage import CannotRehearse, Feed, Stage, StopStep
from statewise.health.probes.step import step_of
from statewise.health.probes.take import one_line
from statewise.health.probes.trial import Trial, Twin
from statewise.health.signals import Influence, Signal, Supervision, SupervisionPair

__all__ = ["CannotRehearse", "Feed", "Outcome", "Rehearsal", "Stage", "StopStep"]

# Batches that a step is tried with, while they could not show what was asked.
_MOST_TRIES = 20
_TRAINING = "training_step"


@dataclass
class Outcome:
    """What a rehearsal showed, by kind of signal why something was not asked, and whether another batch may show more."""

    signals: list[Signal] = field(default_factory=list)
    unable: dict[type[Signal], str] = field(default_factory=dict)
    ask_again: bool = False
    # Parameters without a way from the loss, with whose values it changes.
    read: frozenset[str] = frozenset()


class Rehearsal:
    """The rehearsals of one fit: "training_step" before the first step and after some updates, "validation_step" once."""

    def __init__(self) -> None:
        self._supervision: dict[str, Supervision] = {}
        self._tries: dict[str, int] = {}
        self._looked: set[str] = set()
        self._evaluated = False
        self._dependence = dependence.Dependence()
        self._alike = dependence.Alikeness()

    def hold(
        self,
        module: nn.Module,
        step_name: str,
        batch: Any,
        batch_idx: int,
        candidates: Candidates,
        stage: Stage,
        *,
        step: int = 0,
        causal: Sequence[str] = (),
        processes: int = 1,
    ) -> Outcome:
        """Ask what is open. step: completed optimizer steps. processes: that train together.

        Whatever goes wrong is a reason for not having asked: the real step is the judge of errors.
        """
        outcome = Outcome()
        training = step_name == _TRAINING
        self._tries[step_name] = self._tries.get(step_name, 0) + 1
        due = {"look": step_name not in self._looked}
        due["evaluate"] = training and not self._evaluated
        due["depend"] = training and self._dependence.due(step)
        if training:
            self._follow_targets(outcome, batch)
        if any(due.values()):
            concerned = self._concerned(due, training, causal)
            try:
                held = [tensor for _, tensor in candidates.values()]
                trial = Trial(module, batch, stage, step_of(step_name, batch_idx), held)
                with trial.going_on():
                    twin = self._evaluate(trial, outcome, candidates, causal, processes) if due["evaluate"] else None
                    if due["depend"]:
                        self._depend(trial, outcome, step)
                    if due["look"]:
                        concerned = self._concerned({"look": True}, training, ())
                        self._look(trial, outcome, step_name, candidates if training else {}, twin, processes)
            except Exception as error:
                reason = str(error) if isinstance(error, CannotRehearse) else one_line(error)
                said = {type(signal) for signal in outcome.signals}
                outcome.unable |= dict.fromkeys(concerned - said, f"a trial of {step_name} on a copy failed: {reason}")
                self._looked.add(step_name)
                if not concerned.isdisjoint(evaluation.KINDS) or due["depend"]:
                    self._evaluated = self._dependence.settled = self._alike.settled = True
        outcome.ask_again |= training and not (self._dependence.settled and self._alike.settled)
        outcome.ask_again &= self._tries[step_name] < _MOST_TRIES
        return outcome

    def _concerned(self, due: dict[str, bool], training: bool, causal: Sequence[str]) -> set[type[Signal]]:
        kinds: set[type[Signal]] = set()
        if due.get("look"):
            kinds |= {SupervisionPair} | ({Influence} if training else set())
        if due.get("evaluate"):
            kinds |= {*evaluation.KINDS} | ({causality.EarlierOutputs} if causal else set())
        if due.get("evaluate") or due.get("depend"):
            kinds |= {dependence.Ignored, dependence.AlikeTargets}
        return kinds

    def _evaluate(
        self, trial: Trial, outcome: Outcome, candidates: Candidates, causal: Sequence[str], processes: int
    ) -> Twin | None:
        """What can be asked of any batch, once. Returns a copy that is as new, if there is one."""
        self._evaluated = True
        feed = trial.stage.feed
        done = evaluation.evaluate(trial, candidates, causal, together=processes > 1)
        outcome.signals += done.signals
        outcome.unable |= done.unable
        as_new = done.twin if done.untouched else None
        if as_new is not None:
            as_new.train()
        if done.whole is None or done.twin is None or done.whole.loss is None:
            why = done.unable.get(evaluation.KINDS[0], f"{_TRAINING} neither returns nor logs a loss that has a gradient")
        elif processes > 1:
            why = "it is asked where one process trains alone"
        elif not done.steady:
            why = "a run of the step leaves something behind for the next"
        elif done.rows < 2:
            why = done.unable.get(evaluation.KINDS[0], "the batch has no rows")
        else:
            self._alike.learn(done.whole, done.twin)
            self._alike.shuffled = feed.shuffled
            self._follow_targets(outcome, trial.batch)
            return as_new
        outcome.unable |= {dependence.Ignored: why, dependence.AlikeTargets: why}
        self._dependence.settled = self._alike.settled = True
        return as_new

    def _follow_targets(self, outcome: Outcome, batch: Any) -> None:
        told = self._alike.look(batch)
        if told is not None:
            outcome.signals.append(told)

    def _depend(self, trial: Trial, outcome: Outcome, step: int) -> None:
        """What only weights that were updated can show."""
        if self._dependence.settled:
            return
        twin = trial.twin()
        twin.evaluate()
        whole = trial.play(twin)
        if whole.error is not None:
            raise whole.error
        told = self._dependence.ask(trial, twin, whole, step, row_count(trial.batch))
        if told is not None:
            outcome.signals.append(told)

    def _look(
        self,
        trial: Trial,
        outcome: Outcome,
        step_name: str,
        candidates: Candidates,
        twin: Twin | None,
        processes: int,
    ) -> None:
        """Hidden tensors that shape the loss, and what the loss looks at, in the mode of the real step."""
        self._looked.add(step_name)
        asked = ask(trial, step_name, candidates, twin)
        seen = asked.seen
        if step_name == _TRAINING:
            outcome.signals.append(Influence(asked.shaping))
            # How many runs that takes depends on numbers: processes that wait for one another must not do it.
            if processes == 1:
                outcome.read = read_as_numbers(trial, asked.twin, asked.take)
        if seen.supervision is None:
            outcome.unable[SupervisionPair] = seen.why
            if seen.ask_again:
                outcome.ask_again = True
                self._looked.discard(step_name)
            return
        self._supervision[step_name] = seen.supervision
        train, validation = self._supervision.get(_TRAINING), self._supervision.get("validation_step")
        if train is not None and validation is not None:
            outcome.signals.append(SupervisionPair(train, validation))
