"""Table -> split -> scale -> windows -> batches."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from statewise.choices import at_least, one_of
from statewise.data.form import Form
from statewise.data.generators.synthetic import LinearSystem
from statewise.data.preparation.kept import Store
from statewise.data.preparation.prepared import Prepared
from statewise.data.preparation.scaling import StandardScaler
from statewise.data.segments.gaps import Gap, nanoseconds
from statewise.data.segments.missing import Missing
from statewise.data.source import Source
from statewise.data.windows.batches import (
    Batch,
    BatchLoader,
    ContiguousBatches,
    SequentialBatches,
    ShuffledBatches,
    TrainingBatches,
    WindowDataset,
)
from statewise.data.windows.division import DEFAULT_SPLIT, NO_FOLDS, Division
from statewise.data.windows.folds import Folds
from statewise.data.windows.shares import PaddedWindows, Share, SharedBatches
from statewise.data.windows.streams import SAMPLINGS

DEFAULT_GAP = Gap()
DEFAULT_MISSING = Missing()


class WindowsDataModule(L.LightningDataModule):
    """Windows of a table as batches, in three blocks of time. A subclass says which table: `source()`.

    All answers about the windows of a split (`last_step`, `target_positions`, `target_scale`, `to_original`, `optimal`,
    `evaluation_batches`, the validation and test loaders) are in one order: by series, then time.

    Args:
        window, horizon: rows seen, and rows predicted after them.
        stride: every stride-th window of a segment is used.
        split: fractions, row counts or dates (splits.axis_borders).
        folds, fold: walk-forward folds instead of one split, and which of them this is (folds.py).
        embargo: rows of the time axis, or a duration such as `2h`, after an evaluation block that train nothing.
        gap, max_gap, missing: which rows may stand in one window (segments.py); max_gap is the longest jump in time, such
            as `3m`, that windows cross; None is less than one and a half steps.
        sampling: `shuffled` trains on all windows in random order, each from a state of nothing; `contiguous` on chunks of
            `window` rows that follow one another in `batch_size` streams, whose state is carried on (streams.py,
            statewise/carried.py). Validation, test and the baselines are on the same windows under both, each from a state
            of nothing: a memory longer than `window` shows in the training loss, not there.
        scale: `global` or `per_series`; None is per series where there are several.
        supervision: targets for the `last` time step or for `all`.
        seed: of the order of training batches.

    Attributes:
        dtype: of the batches; set it before `setup`.
    """

    def __init__(
        self,
        *,
        window: int,
        horizon: int = 1,
        stride: int = 1,
        split: list[Any] = DEFAULT_SPLIT,
        folds: Folds = NO_FOLDS,
        fold: int = 0,
        embargo: Any = None,
        gap: Gap = DEFAULT_GAP,
        max_gap: str | None = None,
        missing: Missing = DEFAULT_MISSING,
        batch_size: int = 128,
        sampling: str = "shuffled",
        scale: str | None = None,
        supervision: str = "last",
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        at_least(1, data__window=window, data__horizon=horizon, data__stride=stride, data__batch_size=batch_size)
        at_least(0, data__seed=seed, data__num_workers=num_workers)
        one_of("data.supervision", supervision, ("last", "all"))
        one_of("data.sampling", sampling, SAMPLINGS)
        if sampling == "contiguous" and stride != 1:
            raise ValueError(
                f"data.stride must be 1 with data.sampling=contiguous, got {stride}: chunks of data.window rows follow one "
                "another; use data.stride=1, or data.sampling=shuffled"
            )
        if scale is not None:
            one_of("data.scale", scale, ("global", "per_series"))
        self.window, self.horizon, self.stride, self.batch_size = window, horizon, stride, batch_size
        if max_gap is not None:
            nanoseconds(max_gap, "data.max_gap")
            if gap.policy == "ignore":
                raise ValueError(
                    f"data.max_gap={max_gap} has no meaning with data.gap.policy=ignore, which lets windows cross all gaps: "
                    "leave one of them out"
                )
        self.division = Division(list(split), folds, fold, embargo)
        self.gap, self.max_gap, self.missing = gap, max_gap, missing
        self.sampling = sampling
        self.scale, self.supervision, self.seed, self.num_workers = scale, supervision, seed, num_workers
        self.dtype: torch.dtype = torch.float64
        self._prepared: Prepared | None = None
        self._form: Form | None = None
        self._position = {"epoch": 0, "batch": 0}
        self._loaded: dict[str, Any] | None = None  # a checkpoint's state that came before `setup`
        self._resumed: dict[str, Any] | None = None  # a checkpoint's state that the next training loader goes on from

    def source(self) -> Source:
        """The table, and what is known about it."""
        raise NotImplementedError(f"{type(self).__name__} must implement source()")

    def store(self, options: Mapping[str, Any]) -> Store | None:
        """Where what is made of the source is kept for later runs; None: nowhere.

        options: of `Prepared`, those that the scaled table depends on.
        """
        return None

    def setup(self, stage: str | None = None) -> None:
        """Reads and prepares everything, once, whatever the stage."""
        if self._prepared is not None:
            return
        options: dict[str, Any] = {
            "division": self.division,
            "gap": self.gap,
            "max_gap": self.max_gap,
            "missing": self.missing,
            "scale": self.scale,
            "dtype": self.dtype,
        }
        prepared = Prepared(
            self.source,
            window=self.window,
            horizon=self.horizon,
            stride=self.stride,
            streams=self.batch_size if self.sampling == "contiguous" else None,
            store=self.store(options),
            **options,
        )
        if self._loaded is not None:
            prepared.adopt(_scaler_of(self._loaded))
        self._prepared = prepared

    @property
    def prepared(self) -> Prepared:
        if self._prepared is None:
            raise RuntimeError("the data is not prepared yet: call setup() first")
        return self._prepared

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self.prepared.source.features

    @property
    def target_names(self) -> tuple[str, ...]:
        return self.prepared.source.targets

    @property
    def n_features(self) -> int:
        return len(self.feature_names)

    @property
    def n_targets(self) -> int:
        return len(self.target_names)

    @property
    def form(self) -> Form:
        """What a model of these data, and a new file for it, must fit."""
        if self._form is None:
            self._form = Form.of(self.prepared.source, self.prepared.rows, self.horizon, self.gap)
        return self._form

    @property
    def target_inputs(self) -> tuple[int, ...] | None:
        """The column of each target among the features; None if a target is no feature."""
        places = self.prepared.target_columns
        return tuple(places) if all(place < self.n_features for place in places) else None

    @property
    def targets_are_levels(self) -> bool:
        return self.prepared.source.targets_are_levels

    @property
    def system(self) -> LinearSystem | None:
        return self.prepared.source.system

    @property
    def planted_ic(self) -> float | None:
        return self.prepared.source.planted_ic

    @property
    def scaler(self) -> StandardScaler:
        return self.prepared.scaler

    @property
    def notes(self) -> list[str]:
        """The account of the data: rows read, dropped, filled and left out, gaps, parts, scaling; one sentence each."""
        return self.prepared.notes

    def n_windows(self, split: str) -> int:
        return len(self.prepared.part(split).starts)

    @property
    def n_training_batches(self) -> int:
        """Batches in an epoch, all of them."""
        streams = self.prepared.streams
        return -(-self.n_windows("train") // self.batch_size) if streams is None else streams.batches

    def share(self, split: str) -> Share:
        """What this process takes of every batch: all of it, unless a Trainer says that others take part."""
        if self.trainer is None:
            return Share()
        streams = self.prepared.streams if split == "train" else None
        return Share(self.trainer.global_rank, self.trainer.world_size, None if streams is None else streams.width)

    def places(self, split: str, batch: int) -> range:
        """Which windows of an evaluation split this process has in that batch; padding is none."""
        first = batch * self.batch_size
        own = self.share(split).rows(min(self.batch_size, self.n_windows(split) - first))
        return range(first + own.start, first + own.stop)

    def train_dataloader(self) -> BatchLoader:
        """Batches as `sampling` says; after `load_state_dict` the first loader goes on where the checkpoint stands."""
        epoch, batch = (self.trainer.current_epoch if self.trainer is not None else 0), 0
        if self._resumed is not None:
            state, self._resumed = self._resumed, None
            epoch, batch = state["position"]["epoch"], state["position"]["batch"]
            self._check_same_order(state["order"], batch)
        dataset = self.prepared.training(self.supervision)
        batches: TrainingBatches
        if self.sampling == "contiguous":
            batches = ContiguousBatches(len(dataset), self.batch_size, epoch=epoch, batch=batch)
        else:
            batches = ShuffledBatches(len(dataset), self.batch_size, seed=self.seed, epoch=epoch, batch=batch)
        return self._loader(dataset, batches, "train")

    def val_dataloader(self) -> BatchLoader:
        return self._in_order("val")

    def test_dataloader(self) -> BatchLoader:
        return self._in_order("test")

    def batches_done(self, epoch: int, batch: int) -> None:
        """Says that `batch` batches of an epoch are finished: trained on, not only fetched.

        To be called from `on_train_batch_end` with `trainer.current_epoch` and `batch_idx + 1`, before a checkpoint is
        saved. The end of an epoch (under `limit_train_batches`, too) is the start of the next.
        """
        total = self.n_training_batches
        if self.trainer is not None:
            total = int(min(total, self.trainer.num_training_batches))
        self._position = {"epoch": epoch + 1, "batch": 0} if batch >= total else {"epoch": epoch, "batch": batch}

    def evaluation_batches(self, split: str, batch_size: int = 1024) -> Iterator[Batch]:
        """All windows in order, with targets for the last time step, whatever the supervision."""
        dataset = self.prepared.dataset(split, "last")
        for indices in SequentialBatches(len(dataset), batch_size):
            yield cast(Batch, dataset.__getitems__(indices))

    def last_step(self, split: str) -> tuple[Tensor, Tensor]:
        """Scaled targets, and which are observed, after the last input row of every window: [n, horizon, m] each."""
        targets, observed = self.prepared.dataset(split, "last").targets()
        return targets[:, 0], observed[:, 0]

    def target_positions(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Series names [n], and times [n, horizon] (row numbers in the series where there is no time column)."""
        return self.prepared.target_positions(split)

    def target_scale(self, split: str) -> np.ndarray:
        """Factor from scaled to original errors, [n, m]."""
        return self.prepared.target_statistics(split)[1]

    def to_original(self, split: str, scaled: np.ndarray) -> np.ndarray:
        """Target values [n, horizon, m] in original units."""
        mean, scale = self.prepared.target_statistics(split)
        return np.asarray(scaled * scale[:, None] + mean[:, None])

    def optimal(self, split: str) -> np.ndarray | None:
        """The best possible predictions [n, 1, m], scaled; None where unknown, or for a horizon above 1."""
        return self.prepared.optimal(split)

    def state_dict(self) -> dict[str, Any]:
        """Scaler, position (finished batches) and form as plain values and tensors."""
        state = {"position": dict(self._position), "order": self._order(), "scaler": self.scaler.state_dict()}
        return state | {"form": self.form.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the checkpoint's scaler, and its position if this is for training: not for `trainer.test`."""
        if self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING:
            self._resumed, self._position = state_dict, dict(state_dict["position"])
        if self._prepared is None:
            self._loaded = state_dict
        else:
            self._prepared.adopt(_scaler_of(state_dict))

    def _order(self) -> dict[str, int | str]:
        """What the order of training batches depends on, beside the epoch."""
        order: dict[str, int | str] = {"windows": self.n_windows("train"), "batch_size": self.batch_size, "seed": self.seed}
        return order | {"sampling": self.sampling, "window": self.window}

    def _check_same_order(self, was: dict[str, int | str], batch: int) -> None:
        """Inside an epoch, the rest of it must be what the parent run would have seen."""
        if not batch:
            return
        now = self._order()
        changed = [f"{name} was {value} and is {now[name]}" for name, value in was.items() if value != now[name]]
        if changed:
            raise ValueError(
                f"the checkpoint stands inside an epoch (after batch {batch}) whose order has changed: "
                f"{', '.join(changed)}; resume with the data keys of that run, or from the end of an epoch"
            )

    def _in_order(self, split: str) -> BatchLoader:
        dataset = self.prepared.dataset(split, self.supervision)
        return self._loader(dataset, SequentialBatches(len(dataset), self.batch_size), split)

    def _loader(self, dataset: WindowDataset, batches: TrainingBatches | SequentialBatches, split: str) -> BatchLoader:
        on_gpu = self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"
        share = self.share(split)
        if share.processes > 1:
            own = PaddedWindows(dataset), SharedBatches(batches, share)
            return BatchLoader(*own, num_workers=self.num_workers, pin_memory=on_gpu)
        return BatchLoader(dataset, batches, num_workers=self.num_workers, pin_memory=on_gpu)


def _scaler_of(state: dict[str, Any]) -> StandardScaler:
    scaler = StandardScaler()
    scaler.load_state_dict(state["scaler"])
    return scaler
