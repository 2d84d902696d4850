"""Which parameters have had no gradient in any step so far, and whether the modules that hold them were seen to be called."""

from collections.abc import Iterable

from statewise.health.graph.listening import Listening
from statewise.health.signals import Presence
from statewise.health.steps.loop import LoopCounter
from statewise.health.steps.updates import UpdateMonitor


def presence(updates: Iterable[UpdateMonitor], settled: set[str], loop: LoopCounter, listening: Listening) -> Presence:
    """settled: parameters of which something is said already."""
    silent = {
        name
        for update in updates
        for index, name in enumerate(update.names)
        if update.ledger.steps > 0
        and update.ledger.none_total[index] == update.ledger.steps
        and update.parameters[index].requires_grad
    }
    silent -= settled
    called = frozenset(call.name for call in listening.calls)
    return Presence(loop.batches, loop.epoch_ended, frozenset(silent), called, listening.unseen(silent))
