"""What the counted steps of one optimizer come to, as signals; nothing at nearly every step of a healthy run."""

from collections.abc import Callable, Iterator, Sequence

from statewise.health.graph.listening import Listening
from statewise.health.graph.walk import LossGraph
from statewise.health.signals import Signal, Steps
from statewise.health.steps.ledger import SHORTEST_RUN
from statewise.health.steps.signals import Clipping
from statewise.health.steps.tracks import ODD_STEPS, odd_ratios, suspicious, tracks
from statewise.health.steps.updates import UpdateMonitor


def step_news(
    number: int,
    update: UpdateMonitor,
    settled: Callable[[], set[str]],
    listening: Listening,
    graphs: Sequence[LossGraph],
) -> Iterator[Signal]:
    """One signal after another: what is found at one is `settled` before the next is made. Asks for a batch to be heard
    where calls would help, and where one more step without a gradient may be a finding.
    """
    ledger = update.ledger
    if ((ledger.none_run == SHORTEST_RUN - 1) & (ledger.alive > 0)).any():
        listening.due = True
    if (update.runs.odd_ratio == ODD_STEPS).any():
        yield odd_ratios(update)
    if update.runs.clipped:
        before, after = update.runs.clip_norms
        yield Clipping(number, update.runs.clipped, before, after, update.adaptive)
    if not len(suspicious(update)):
        return
    chosen = tracks(update, settled())
    fresh = listening.attached
    if fresh:
        listening.hear(graphs)
    elif any(track.none_unusual and track.ever_alive for track in chosen):
        listening.due = True
    alive = frozenset(name for i, name in enumerate(update.names) if ledger.none_run[i] == 0)
    yield Steps(optimizer=number, tracks=chosen, calls=listening.calls, fresh=fresh, reached=alive)
