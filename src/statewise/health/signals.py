"""What the rules are given: the facts of a run, and signals, each one kind of news about it."""

from dataclasses import dataclass
from typing import ClassVar

from statewise.health.attributes import HiddenTensor
from statewise.health.declared import Declared
from statewise.health.graph.flow import Call
from statewise.health.parameters import Inventory


class Signal:
    """One kind of news. A rule names the kind that it judges; `waiting` says why it has not been judged while none came."""

    waiting: ClassVar[str]


@dataclass(frozen=True)
class Wiring(Signal):
    """The inventory was taken: at the start, and whenever parameters, modules or groups are no longer the same objects."""

    waiting: ClassVar[str] = "the fit did not start"


@dataclass(frozen=True)
class AlienLeaf:
    """A leaf of the loss's graph that is no parameter. `hidden` is None where no attribute holds it."""

    shape: tuple[int, ...]
    is_parameter: bool
    in_optimizer: bool
    hidden: HiddenTensor | None


@dataclass(frozen=True)
class FirstBackward(Signal):
    """What the first update of an optimizer has to work with: its backward passes since the run began."""

    waiting: ClassVar[str] = "no optimizer step was reached"

    # Parameters the update is meant to move, those that a loss reaches, and those with a gradient.
    held: frozenset[str]
    reached: frozenset[str]
    with_gradient: frozenset[str]
    # Parameters that had a gradient right after the backward pass.
    after_backward: frozenset[str]
    aliens: tuple[AlienLeaf, ...]
    calls: tuple[Call, ...]
    # Backward passes the framework saw, and whether all graphs were walked.
    backwards: int
    complete: bool
    manual: bool
    # Parameters that the loss of a trial did not reach, but changed with (read_as_numbers).
    read: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Influence(Signal):
    """Gradients of the loss with respect to hidden tensors that ask for none (the non-parameter probe)."""

    waiting: ClassVar[str] = "no training batch was reached"

    shaping: tuple[HiddenTensor, ...]


@dataclass(frozen=True)
class LoggedLoss:
    """A value logged beside the returned loss, both as they were given."""

    name: str
    value: float
    returned: float
    rounded: str


@dataclass(frozen=True)
class LoggedLosses(Signal):
    """Logged values that are the rounding of a returned loss; none where all are the loss itself."""

    waiting: ClassVar[str] = "no float64 loss was logged"

    losses: tuple[LoggedLoss, ...]


@dataclass(frozen=True)
class Supervision:
    """Which positions of a prediction the loss of one step looks at.

    `positions` counts the elements of one sample's prediction that receive a gradient from any sample of the batch;
    `inputs` are the per-sample shapes of the batch's float tensors.
    """

    step: str
    loss: str
    prediction: tuple[int, ...]
    positions: int
    times: int | None
    length: int | None
    inputs: tuple[tuple[int, ...], ...]
    # The module whose output the prediction is.
    module: str = ""


@dataclass(frozen=True)
class SupervisionPair(Signal):
    """The same question asked of the training and of the validation step."""

    waiting: ClassVar[str] = "no validation batch was reached"

    train: Supervision
    validation: Supervision


@dataclass(frozen=True)
class Track:
    """One parameter over its optimizer's last steps: only those that give reason to look are handed to the rules."""

    name: str
    steps: int
    # Length of the current run of steps with a gradient of exactly zero (or with none), and whether a run of that length
    # is far outside what this parameter has shown before.
    zero_run: int = 0
    zero_unusual: bool = False
    none_run: int = 0
    none_unusual: bool = False
    ever_alive: bool = True
    # Whether its value moved during the zero run, although no gradient asked for it.
    moved_without_gradient: bool = False
    weight_decay: float = 0.0
    lr: float = 0.0
    # Consecutive steps with a gradient in which less than 5 % of the elements changed, and the share in the last.
    swallowed_run: int = 0
    share_changed: float = 1.0
    # Whether any step of this run changed more, and the share of its group's tensors that fare alike now.
    followed_before: bool = False
    group_share: float = 1.0
    # Median size of the update the optimizer asks for, and the distance to the next number of that type.
    expected_update: float | None = None
    resolution: float | None = None
    dtype: str = ""
    magnitude: float = 0.0
    # Consecutive steps that began with the very values of the step before, although that step had changed them.
    written_back_run: int = 0
    # The same where the values lie at a bound and every step pushes them outwards; the share of elements that is held.
    held_run: int = 0
    share_held: float = 0.0
    bias_before_norm: bool = False
    size: int = 0
    # Consecutive steps whose gradient was non-zero before clipping and zero at the update, and whether by a factor of 0.
    removed_run: int = 0
    scaled_to_zero: bool = False
    # Consecutive steps whose gradient was non-zero after the backward pass and gone before clipping.
    cleared_run: int = 0
    # Consecutive updates whose gradient began as that of the update before.
    stale_run: int = 0

    @property
    def removed(self) -> bool:
        """Whether something between the backward pass and the update takes the gradient away."""
        return self.removed_run >= 2 or self.cleared_run >= 2


@dataclass(frozen=True)
class Steps(Signal):
    """The per-step ledger of one optimizer, cut down to the parameters that give reason to look."""

    waiting: ClassVar[str] = "fewer than 5 optimizer steps were made"

    optimizer: int
    tracks: tuple[Track, ...]
    # The modules' calls of this very batch, or of the run's first one where nobody listened since.
    calls: tuple[Call, ...] = ()
    fresh: bool = False
    reached: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LearningRate:
    """Consecutive steps at which a group's lr was 0. `scheduled`: a scheduler sets it."""

    group: int
    zero_run: int
    scheduled: bool
    ever_positive: bool
    # Other groups of the run have an lr above 0 now.
    others_positive: bool = False
    # Steps that are still planned; None where nobody knows.
    remaining: int | None = None
    # The schedule was evaluated over all planned steps at the start.
    foreseen: bool = False


@dataclass(frozen=True)
class LearningRates(Signal):
    """The groups of one optimizer after a step; empty where every lr is above 0."""

    waiting: ClassVar[str] = "no optimizer step was made"

    rates: tuple[LearningRate, ...]


@dataclass(frozen=True)
class Loop(Signal):
    """What the training loop did so far: backward passes, updates begun and updates made, in this process."""

    waiting: ClassVar[str] = "no training batch was reached"

    batches: int
    backwards: int
    updates: int
    attempts: int
    # Consecutive updates that found no gradient at all, and whether a backward pass ran before the last of them.
    empty_updates: int
    backward_before_empty: bool
    accumulate: int
    manual: bool
    scaler: bool
    epoch_ended: bool
    # Backward passes since the last update, and the most that there were before one.
    since_update: int = 0
    usual_backwards: int = 0
    # Batches running without a backward pass and without a step, and the most that there were before.
    idle_batches: int = 0
    usual_idle: int = 0
    # The optimizer whose updates are skipped most: how many in a row now, their share in the last `announced` ones.
    skipping: int = 0
    skipped_run: int = 0
    skipped_share: float = 0.0
    announced: int = 0
    # The optimizer that has declined most steps in a row: called, and its own count did not advance.
    declining: int = 0
    declined_run: int = 0


@dataclass(frozen=True)
class Presence(Signal):
    """Which parameters took part in any of the run's batches so far.

    called: modules that were seen being called in the last batch that was listened to. unseen: `silent` parameters of
    modules whose calls cannot be seen, because the forward pass around them is compiled.
    """

    waiting: ClassVar[str] = "fewer than 20 batches and no whole epoch were seen"

    batches: int
    epoch_ended: bool
    silent: frozenset[str]
    called: frozenset[str] = frozenset()
    unseen: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Facts:
    """What is known whatever the news: completed optimizer steps, who is who, what is declared and what is hidden."""

    step: int
    inventory: Inventory
    declared: Declared
    hidden: tuple[HiddenTensor, ...] = ()
