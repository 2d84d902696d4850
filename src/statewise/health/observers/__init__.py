"""The observers of a run, one side of it each."""

from statewise.health.observer import Observer
from statewise.health.observers.batches import BatchWatch
from statewise.health.observers.declared_frozen import DeclaredFrozen
from statewise.health.observers.laws import LawWatch, MemoryWatch
from statewise.health.observers.lookahead import Lookahead
from statewise.health.observers.loss_graph import LossGraphs
from statewise.health.observers.loss_spikes import LossSpikes
from statewise.health.observers.loss_values import LossValues
from statewise.health.observers.modes import ModeWatch
from statewise.health.observers.saturation import SaturationWatch
from statewise.health.observers.shared_updates import SharedUpdateWatch

OBSERVERS: tuple[type[Observer], ...] = (
    BatchWatch,
    DeclaredFrozen,
    LawWatch,
    MemoryWatch,
    LossGraphs,
    LossSpikes,
    LossValues,
    Lookahead,
    ModeWatch,
    SaturationWatch,
    SharedUpdateWatch,
)
