"""The probes of a copy in evaluation mode: the batch again, in other draws, in part."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from statewise.health.probes import causality, dependence, mixing, reduction, repetition, sub_batch
from statewise.health.probes.influence import Candidates
from statewise.health.probes.rows import NoRows, chosen, row_count
from statewise.health.probes.take import Take, one_line
from statewise.health.probes.trial import Trial, Twin
from statewise.health.signals import Signal

_SEED = 20_407


@dataclass
class Evaluation:
    """What came of one batch, whose `rows` lie on `axis`. `steady`: a run leaves nothing behind in its copy for the next.

    untouched: no tensor of the copy is another than before.
    """

    signals: list[Signal] = field(default_factory=list)
    unable: dict[type[Signal], str] = field(default_factory=dict)
    twin: Twin | None = None
    whole: Take | None = None
    rows: int = 0
    axis: int = 0
    steady: bool = False
    untouched: bool = False


KINDS: tuple[type[Signal], ...] = (
    mixing.RowsAlone, sub_batch.SubBatch, repetition.Repeated, repetition.Reseeded, reduction.Halves,
)  # fmt: skip

_OF_ROWS: tuple[type[Signal], ...] = (mixing.RowsAlone, sub_batch.SubBatch, reduction.Halves)


def evaluate(trial: Trial, candidates: Candidates, causal: Sequence[str], *, together: bool = False) -> Evaluation:
    """Run the probes.

    together: other processes run the same at the same time, and a step may wait for them: which runs are made must not
    depend on numbers, which may differ there.
    """
    done = Evaluation()
    twin = trial.twin()
    twin.evaluate()
    before = repetition.held(twin.module)
    whole = trial.play(twin)
    if whole.error is not None:
        done.unable = dict.fromkeys(KINDS, f"the step fails in evaluation mode: {one_line(whole.error)}")
        return done
    done.twin, done.whole = twin, whole
    after = repetition.held(twin.module)
    repeated = _repeat(trial, twin, whole, before)
    done.steady = not repeated.leaks
    if whole.drew or together:
        other = trial.play(twin if done.steady else _fresh(trial), seed=_SEED)
        done.signals.append(repetition.drawing(whole, other) if other.error is None else repetition.Reseeded())
        # What is drawn and has no part in the results (a library that checks types by samples) is no matter.
        whole.drew = other.error is not None or repetition.differs(whole, other)
    else:
        done.signals.append(repetition.Reseeded())
    try:
        done.axis, done.rows, certain = _rows(trial)
    except NoRows as reason:
        done.unable |= dict.fromkeys(_OF_ROWS, str(reason))
    else:
        part_twin = twin if done.steady else _fresh(trial)
        part = _in_part(trial, done, whole, part_twin, candidates, certain, together)
        if repeated.leaks and part is not None:
            now = repetition.held(part_twin.module)
            per_row = repetition.follows_batch(repeated.holders, after, now, done.rows, done.rows // 2)
            repeated = replace(repeated, per_row=per_row)
            if repeated.registered:
                # A running average that moves in evaluation mixes the rows through itself: said once is enough.
                done.signals = [signal for signal in done.signals if not isinstance(signal, mixing.RowsAlone)]
                done.unable[mixing.RowsAlone] = "buffers change in evaluation mode"
    done.signals.append(repeated)
    if causal and done.steady:
        done.signals.append(causality.look_ahead(trial, twin, whole, causal))
    elif causal:
        done.unable[causality.EarlierOutputs] = "a run leaves something behind for the next, so that no two are alike"
    done.untouched = done.steady and not twin.moved() and repetition.unchanged(before, twin.module)
    return done


def _rows(trial: Trial) -> tuple[int, int, bool]:
    """The axis of the rows, how many there are, and whether the loader confirms it."""
    feed = trial.stage.feed
    known = [size for size in (feed.batch_size, feed.last) if size is not None]
    try:
        rows = row_count(trial.batch)
        if not known or rows in known:
            return 0, rows, bool(known)
        reason = NoRows(f"its {rows} rows are not the {feed.batch_size} of the loader")
    except NoRows as error:
        reason = error
    try:
        width = row_count(trial.batch, axis=1)
    except NoRows:
        raise reason from None
    if width not in known:
        raise reason
    return 1, width, True


def _fresh(trial: Trial) -> Twin:
    twin = trial.twin()
    twin.evaluate()
    return twin


def _repeat(trial: Trial, twin: Twin, whole: Take, before: dict[str, object]) -> repetition.Repeated:
    """Run it again; where the step writes into parameters, from the first ones too.

    A teacher's average is no state of a batch, and neither are values that the first batch ever initialises.
    """
    shuffled = trial.stage.feed.shuffled
    again = trial.play(twin)
    if again.error is not None:
        return repetition.Repeated(shuffled=shuffled)
    repeated = repetition.leaking(whole, again, before, twin.module, shuffled)
    if twin.moved():
        now = twin.values()
        twin.assign()
        third = trial.play(twin)
        if third.error is None and not repetition.leaking(whole, third, before, twin.module, shuffled).leaks:
            twin.restoring = True
            return repetition.Repeated(shuffled=shuffled)
        twin.assign(now)
    return repeated


def _in_part(
    trial: Trial, done: Evaluation, whole: Take, twin: Twin, candidates: Candidates, certain: bool, together: bool
) -> Take | None:
    """The last half of the rows alone; the first half where the losses ask for it."""
    rows, alone, feed = done.rows, done.rows // 2, trial.stage.feed
    last = chosen(trial.batch, slice(rows - alone, rows), rows, done.axis)
    part = trial.play(twin, last)
    if not certain and (reason := _other_axis(trial, twin, whole, part, rows)):
        done.unable |= dict.fromkeys(_OF_ROWS, reason)
        return None
    if part.error is not None:
        done.signals.append(_failure(trial, part, done, candidates))
        for kind in (mixing.RowsAlone, reduction.Halves):
            done.unable[kind] = f"the step fails with {alone} of the {rows} rows"
        return None
    done.signals.append(sub_batch.SubBatch(rows, alone, last=feed.last))
    if whole.drew:
        why = "the step draws random numbers in evaluation mode, others for a part of the batch"
        done.unable[reduction.Halves] = why
        within = _within(trial, whole, twin, rows)
        if within is None:
            done.unable[mixing.RowsAlone] = why
        else:
            done.signals.append(within)
        return part
    done.signals.append(mixing.compare_rows(whole, part, rows, alone, twin.module))
    halves = reduction.Halves(rows, whole.value() or 0.0, last=feed.last, accumulate=feed.accumulate)
    if whole.loss is not None and whole.loss[0] == "the returned loss":
        halves = replace(halves, divided=reduction.divided_by(whole.loss[1], feed.accumulate))
    if together or reduction.suspicious(whole, part):
        first = trial.play(twin, chosen(trial.batch, slice(0, rows - alone), rows, done.axis), watch=False)
        summed = reduction.suspicious(whole, part) and reduction.adds_up(whole, first, part)
        parts = (first.value() or 0.0, part.value() or 0.0)
        halves = replace(halves, parts=parts, summed=summed, reconstruction=_own_target(whole, twin))
    done.signals.append(halves)
    return part


def _within(trial: Trial, whole: Take, twin: Twin, rows: int) -> mixing.RowsAlone | None:
    """Where the step draws: its outermost modules that do not, with what they were given, in part."""
    answer = None
    for call in whole.outermost():
        sub = trial.of(call)
        part_of = Twin.of(twin.module.get_submodule(call.name))
        try:
            if row_count(sub.batch) != rows:
                continue
        except NoRows:
            continue
        all_rows = sub.play(part_of)
        some = sub.play(part_of, chosen(sub.batch, slice(rows - rows // 2, rows), rows))
        if all_rows.error is not None or some.error is not None or all_rows.drew:
            continue
        answer = mixing.compare_rows(all_rows, some, rows, rows // 2, part_of.module)
        if answer.kind:
            inner = answer.module or ""
            return replace(answer, module=".".join(part for part in (call.name, inner) if part))
    return answer


def _own_target(whole: Take, twin: Twin) -> bool:
    met = frozenset[int]().union(*(meeting.of for meeting in whole.comparisons(dependence.owners(twin))))
    return whole.watcher is not None and bool(met & whole.watcher.entered)


def _other_axis(trial: Trial, twin: Twin, whole: Take, part: Take, rows: int) -> str:
    """Where nobody says which axis holds the rows: why the second one may, "" where it cannot."""
    try:
        width = row_count(trial.batch, axis=1)
    except NoRows:
        return ""
    if width < 2:
        return ""
    if part.error is None and not mixing.compare_rows(whole, part, rows, rows // 2, twin.module).kind:
        return ""
    alone = width // 2
    side = trial.play(twin, chosen(trial.batch, slice(width - alone, width), width, axis=1))
    if side.error is not None or mixing.compare_rows(whole, side, width, alone, twin.module).kind:
        return ""
    if not mixing.follow_rows(whole, side, width, alone):
        return ""
    return "nobody says whether the rows lie on the first axis of the batch or the second, and on that they are independent"


def _failure(trial: Trial, part: Take, done: Evaluation, candidates: Candidates) -> sub_batch.SubBatch:
    rows, axis = done.rows, done.axis
    last, last_error = trial.stage.feed.last, ""
    if last is not None and last < rows:
        take = trial.play(_fresh(trial), chosen(trial.batch, slice(rows - last, rows), rows, axis), watch=False)
        last_error = take.why()
    names = tuple(fact.name for fact in sub_batch.sized(candidates, rows))
    return sub_batch.SubBatch(rows, rows // 2, part.why(), part.at, names, last, last_error, trial.stage.feed.whole)
