import logging
from typing import Any

import lightning as L
import numpy as np
import polars as pl
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from statewise.data.datamodule import WindowsDataModule
from statewise.data.segments.gaps import Gap
from statewise.data.segments.missing import Missing
from statewise.data.source import Source
from statewise.data.tables.table import Table
from statewise.data.windows.folds import Folds


class Windows(WindowsDataModule):
    """Windows of a table made by hand."""

    def __init__(self, table: Table, features=None, targets=None, *, optimal=None, reach=0, **windows: Any) -> None:
        super().__init__(**{"window": 4, "batch_size": 8, **windows})
        features = features or table.columns
        self._source = Source(table, tuple(features), tuple(targets or features), optimal=optimal, reach=reach)

    def source(self) -> Source:
        return self._source


def walk(rows=100, columns=2, seed=0) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).normal(size=(rows, columns)), axis=0)


def table(values, *, series=None, minutes=None) -> Table:
    names = tuple(f"x{i}" for i in range(values.shape[1]))
    frame = pl.DataFrame(values, schema=list(names))
    if series is not None:
        frame = frame.with_columns(pl.Series("who", series))
    if minutes is not None:
        stamps = np.datetime64("2024-01-01", "ns") + (np.asarray(minutes) * 60 * 10**9).astype("timedelta64[ns]")
        frame = frame.with_columns(pl.Series("ts", stamps))
    return Table.of(frame, "ts" if minutes is not None else None, "who" if series is not None else None, names)


def ready(values, features=None, targets=None, *, series=None, minutes=None, **windows) -> Windows:
    made = table(np.asarray(values, dtype=float), series=series, minutes=minutes)
    module = Windows(made, features, targets, **windows)
    module.setup("fit")
    return module


def one_tensor(loader) -> list[torch.Tensor]:
    return [torch.cat(parts) for parts in zip(*loader, strict=True)]


def test_the_loaders_give_every_window_exactly_once_and_val_and_test_in_order():
    module = ready(np.arange(100.0)[:, None], batch_size=7)

    for split, loader in (("val", module.val_dataloader()), ("test", module.test_dataloader())):
        inputs, targets, _ = one_tensor(loader)
        assert len(inputs) == module.n_windows(split)
        original = module.to_original(split, targets[:, 0].numpy())[:, 0, 0]
        first = {"val": 70, "test": 80}[split]
        np.testing.assert_allclose(original, np.arange(first, first + len(inputs)), rtol=1e-12)
    _, targets, _ = one_tensor(module.train_dataloader())
    seen = module.to_original("train", targets[:, 0].numpy())[:, 0, 0]
    np.testing.assert_allclose(np.sort(seen), np.arange(4, 70), rtol=1e-12)
    assert not np.all(np.diff(seen) > 0)


@pytest.mark.parametrize("batch_size", [1, 16])
def test_a_batch_of_one_keeps_its_axes(batch_size):
    module = ready(walk(47), split=[37, 5, 5], batch_size=batch_size)
    assert module.n_windows("train") == 33

    for batch in module.train_dataloader():
        assert batch.inputs.shape[1:] == (4, 2)
        assert batch.targets.shape[1:] == (1, 1, 2)
    assert sum(len(batch.inputs) for batch in module.train_dataloader()) == 33


def test_inputs_reach_back_into_earlier_blocks_and_targets_do_not():
    module = ready(walk(), horizon=3)
    rows = [module.prepared.part(split).starts for split in ("train", "val", "test")]

    assert [(r[0] + 4, r[-1] + 4 + 2) for r in rows] == [(4, 69), (70, 79), (80, 99)]


def test_under_all_no_target_of_an_earlier_block_is_observed():
    module = ready(walk(), supervision="all")

    train, val = one_tensor(module.train_dataloader()), one_tensor(module.val_dataloader())
    assert train[2].all()
    assert val[1].shape == (10, 4, 1, 2)
    # The first validation window has its rows 67, 68, 69 in the training block and only row 70 in its own.
    assert val[2][0, :, 0, 0].tolist() == [False, False, False, True]
    assert val[2][3:].all()
    last = next(module.evaluation_batches("val"))
    assert last.targets.shape == (10, 1, 1, 2)
    assert torch.equal(last.targets[:, 0], val[1][:, -1])
    assert last.observed.all()


def test_changing_rows_after_the_training_part_changes_no_training_byte():
    values = walk()
    changed = values.copy()
    changed[70:] *= 1000

    before, after = ready(values, split=[0.7, 0.15, 0.15]), ready(changed, split=[0.7, 0.15, 0.15])

    for part, other in zip(one_tensor(before.train_dataloader()), one_tensor(after.train_dataloader()), strict=True):
        assert part.numpy().tobytes() == other.numpy().tobytes()
    assert before.scaler.equals(after.scaler)
    scaled = (1000 * values[85:] - before.scaler.mean[0]) / before.scaler.scale[0]
    np.testing.assert_allclose(after.last_step("test")[0][:, 0], scaled, rtol=1e-12)


def test_filled_values_are_inputs_but_neither_targets_nor_training_statistics():
    values = walk()
    values[0:3, 0] = values[20:22, 0] = np.nan
    module = ready(values)

    targets, observed = module.last_step("train")
    rows = module.prepared.part("train").starts + 4
    assert not observed[np.isin(rows, [20, 21]), 0, 0].any()
    assert observed[:, 0, 1].all()
    assert observed[~np.isin(rows, [20, 21])].all()
    assert torch.isfinite(targets).all()
    assert all(torch.isfinite(batch.inputs).all() for batch in module.train_dataloader())
    border = 3 + int(0.7 * 97)
    assert module.scaler.mean[0, 0] == pytest.approx(np.nanmean(values[3:border, 0]), rel=1e-13)
    assert any("dropped 3 leading row(s)" in note for note in module.notes)


def test_targets_that_are_no_inputs_are_supported_and_told():
    values = walk(columns=3)
    module = ready(values, ["x2", "x0"], ["x1", "x0"])

    assert (module.n_features, module.n_targets, module.target_inputs) == (2, 2, None)
    batch = next(module.evaluation_batches("test"))
    np.testing.assert_allclose(module.to_original("test", batch.targets[:, 0].numpy())[:, 0], values[80:, [1, 0]])
    np.testing.assert_allclose(
        batch.inputs[0].numpy() * module.scaler.scale[0, :2] + module.scaler.mean[0, :2], values[76:80, [2, 0]]
    )


def test_the_column_of_each_target_among_the_features_is_known():
    assert ready(walk(columns=3), ["x0", "x1", "x2"], ["x2", "x1"]).target_inputs == (2, 1)


def two_series(**windows) -> tuple[np.ndarray, Windows]:
    values = np.concatenate([walk(60), 50 + 9 * walk(40, seed=1)])
    minutes = np.concatenate([np.arange(60), np.arange(20, 60)])
    return values, ready(values, series=["a"] * 60 + ["b"] * 40, minutes=minutes, **windows)


def test_series_are_split_at_the_same_moments_and_scaled_by_themselves():
    values, module = two_series()
    latest = {}
    for split in ("train", "val", "test"):
        names, times = module.target_positions(split)
        assert set(names) == {"a", "b"}
        assert times.shape == (module.n_windows(split), 1)
        latest[split] = (times.min(), times.max())
    assert latest["train"][1] < latest["val"][0]
    assert latest["val"][1] < latest["test"][0]

    targets, _ = module.last_step("train")
    names, _ = module.target_positions("train")
    original = module.to_original("train", targets.numpy())[:, 0]
    np.testing.assert_allclose(original[names == "a"], values[4:42], rtol=1e-12)
    np.testing.assert_allclose(original[names == "b"], values[64:82], rtol=1e-12)
    assert module.scaler.per_series
    assert module.target_scale("train").shape == (len(names), 2)
    assert len(np.unique(module.target_scale("train")[:, 0])) == 2


def test_one_scale_for_all_series_can_be_chosen():
    assert not two_series(scale="global")[1].scaler.per_series


def test_contiguous_batches_use_every_target_once_and_follow_each_stream_through_series_and_gaps():
    # Rows numbered across both series; a gap of 10 minutes in the first one after its row 24.
    minutes = np.concatenate([np.arange(25), np.arange(35, 70), np.arange(70)])
    module = ready(
        np.arange(130.0)[:, None],
        series=["a"] * 60 + ["b"] * 70,
        minutes=minutes,
        scale="global",
        supervision="all",
        sampling="contiguous",
        batch_size=2,
    )
    batches = list(module.train_dataloader())
    scale, mean = float(module.scaler.scale[0, 0]), float(module.scaler.mean[0, 0])

    def rows(tensor):
        return np.rint(tensor.numpy().reshape(len(tensor), -1) * scale + mean).astype(int)

    assert len(batches) == module.n_training_batches == 11
    assert [len(batch.fresh) for batch in batches] == [2] * 10 + [1]
    for before, batch in zip([None, *batches], batches, strict=False):
        inputs, targets = rows(batch.inputs), rows(batch.targets)
        np.testing.assert_array_equal(targets, inputs + 1)
        going_on = np.zeros(2, bool) if before is None else inputs[:, 0] == rows(before.inputs)[: len(inputs), -1] + 1
        np.testing.assert_array_equal(batch.fresh.numpy(), ~going_on[: len(inputs)])
    used = np.sort(np.concatenate([rows(batch.targets).ravel() for batch in batches]))
    # The training part holds 25 + 14 rows of a and 49 of b; the first row of a segment is no target.
    np.testing.assert_array_equal(used, [*range(1, 25), *range(26, 38), *range(61, 109)])
    # The beginnings of two streams, of the second segment of a, and of b.
    assert sum(int(batch.fresh.sum()) for batch in batches) == 4


def test_the_way_of_sampling_changes_the_training_batches_only():
    shuffled, contiguous = two_series()[1], two_series(sampling="contiguous")[1]

    for split in ("train", "val", "test"):
        assert shuffled.n_windows(split) == contiguous.n_windows(split)
        for one, other in zip(shuffled.evaluation_batches(split), contiguous.evaluation_batches(split), strict=True):
            assert all(torch.equal(part, same) for part, same in zip(one, other, strict=True))
    for one, other in zip(shuffled.val_dataloader(), contiguous.val_dataloader(), strict=True):
        assert all(torch.equal(part, same) for part, same in zip(one, other, strict=True))


def test_filled_values_are_no_targets_of_chunks_either():
    values = walk()
    values[20:22, 0] = np.nan
    module = ready(values, sampling="contiguous", supervision="all", batch_size=100)
    (batch,) = module.train_dataloader()

    missing = (~batch.observed[:, :, 0]).nonzero()
    # Row 20 is the last target of the chunk of rows 16 to 19, row 21 the first one of the next.
    assert missing.tolist() == [[4, 3, 0], [5, 0, 0]]


@pytest.mark.parametrize(
    ("keys", "notes"),
    [
        ({"batch_size": 4}, ["train, contiguous: chunks of 4 rows: 17, streams: 4, batches in an epoch: 5, {}: 1"]),
        (
            {"batch_size": 64},
            [
                "train, contiguous: chunks of 4 rows: 17, streams: 17, batches in an epoch: 1, {}: 1",
                "data.sampling=contiguous hands no state on, because every chunk is a stream of its own; choose a "
                "data.batch_size of at most 8",
            ],
        ),
        (
            {"batch_size": 1, "window": 36},
            [
                "train, contiguous: chunks of 36 rows: 1, streams: 1, batches in an epoch: 1, {}: 33",
                "data.sampling=contiguous hands no state on, because every segment holds a single chunk; choose a smaller "
                "data.window",
            ],
        ),
    ],
    ids=["some", "each a stream", "one chunk"],
)
def test_the_notes_tell_the_chunks_of_contiguous_sampling(keys, notes):
    told = ready(walk(), sampling="contiguous", **keys).notes
    place = next(i for i, note in enumerate(told) if note.startswith("train: ")) + 1
    assert told[place : place + len(notes)] == [note.format("rows left out at the ends of segments") for note in notes]
    assert told[place + len(notes)].startswith("val: ")


def test_positions_are_row_numbers_where_there_is_no_time():
    names, rows = ready(walk(), horizon=2).target_positions("test")

    assert rows[0].tolist() == [80, 81]
    assert set(names) == {""}


def test_the_optimal_prediction_is_scaled_like_the_targets():
    values = walk()
    module = ready(values, targets=["x1"], optimal=values[:, 1:] + 1.0)

    error = module.optimal("test") - module.last_step("test")[0].numpy()
    np.testing.assert_allclose(error * module.target_scale("test")[:, None], 1.0, rtol=1e-9)
    assert ready(values, targets=["x1"], optimal=values[:, 1:], horizon=2).optimal("test") is None
    assert ready(values).optimal("test") is None


def test_a_short_series_is_named_while_the_others_train():
    values = np.concatenate([walk(100), walk(3)])
    module = ready(values, series=["long"] * 100 + ["short"] * 3)

    assert module.n_windows("train") == 66
    (note,) = (note for note in module.notes if "no window" in note and "series" in note)
    assert "short (longest run 3 rows)" in note
    assert "long (" not in note


def test_rows_beyond_the_split_are_unused_and_told():
    module = ready(walk(), split=[50, 20, 20])

    assert "10 rows beyond data.split are not used, row 90 to row 99" in module.notes
    assert module.target_positions("test")[1].max() == 89


def test_dates_split_where_they_say():
    module = ready(walk(), minutes=np.arange(100), split=["2024-01-01T00:30", "2024-01-01T01:00"])

    assert [module.n_windows(split) for split in ("train", "val", "test")] == [26, 30, 40]


def test_a_fold_has_blocks_of_its_own_and_is_told():
    module = ready(walk(), folds=Folds(3, test_size=10, val_size=5), fold=1, horizon=2)

    assert [module.target_positions(split)[1][[0, -1]].tolist() for split in ("train", "val", "test")] == [
        [[4, 5], [73, 74]],
        [[75, 76], [78, 79]],
        [[80, 81], [88, 89]],
    ]
    assert "fold 1 of 3 (counted from 0), expanding" in module.notes
    assert "10 rows after this fold are not used, row 90 to row 99" in module.notes


def test_the_scaler_of_a_fold_knows_its_training_block_only():
    values = walk()
    rolling = ready(values, folds=Folds(3, "rolling", test_size=10, val_size=5), fold=2)
    around = ready(values, folds=Folds(3, "surrounding", test_size=10, val_size=5), fold=0, embargo=4)

    assert rolling.scaler.mean[0] == pytest.approx(values[20:85].mean(axis=0), rel=1e-12)
    assert around.scaler.mean[0] == pytest.approx(np.r_[values[:65], values[84:]].mean(axis=0), rel=1e-12)


def test_what_trains_around_an_evaluation_block_sees_no_row_of_it_or_of_the_embargo():
    module = ready(
        np.arange(100.0)[:, None], folds=Folds(3, "surrounding", test_size=10, val_size=5), embargo=4, supervision="all"
    )
    starts = module.prepared.part("train").starts

    assert starts.tolist() == [*range(61), *range(84, 96)]
    assert all(batch.observed.all() for batch in module.train_dataloader())
    assert "train: 81 rows, 73 windows, row 0 to row 64 and row 84 to row 99" in module.notes
    assert any(note.startswith("data.embargo=4: no row within 4") for note in module.notes)
    purged = "purged: 4 training window(s), because a target or an input of theirs lies in an evaluation block or its embargo"
    assert purged in module.notes


def test_chunks_follow_one_another_within_each_training_block():
    module = ready(
        walk(), folds=Folds(3, "surrounding", test_size=10, val_size=5), embargo=4, sampling="contiguous", batch_size=1
    )

    assert module.prepared.streams.starts.tolist() == [*range(0, 64, 4), *range(84, 96, 4)]
    assert np.flatnonzero(module.prepared.streams.fresh).tolist() == [0, 16]


def test_a_target_made_of_later_rows_is_purged_and_scaled_without_them():
    values = np.stack([walk()[:, 0], np.append(walk()[5:, 0], [np.nan] * 5)], axis=1)
    module = ready(values, ["x0"], ["x1"], reach=5, horizon=2)

    assert [len(module.prepared.part(split).starts) for split in ("train", "val", "test")] == [60, 4, 14]
    assert module.prepared.part("train").starts[-1] + 4 + 2 + 5 == 70
    assert module.scaler.mean[0, 1] == pytest.approx(values[:65, 1].mean(), rel=1e-12)
    assert all(observed.all() for split in ("train", "val", "test") for observed in module.last_step(split)[1:])
    assert (
        "purged: 6 training window(s), because a target (made of 5 rows after its own) or an input of theirs lies in an "
        "evaluation block or its embargo"
    ) in module.notes
    assert torch.isfinite(module.prepared.scaled).all()


def test_inserted_rows_are_inputs_and_no_targets_and_the_optimum_follows_them():
    stamps = np.delete(np.arange(100), [20, 21, 85])
    values = walk(97, 1)
    module = ready(values, minutes=stamps, gap=Gap("forward_fill"), optimal=values)

    assert module.prepared.segments.bounds.tolist() == [[0, 100]]
    observed = module.last_step("train")[1]
    assert (~observed[:, 0, 0]).nonzero().flatten().tolist() == [16, 17]
    assert all(torch.isfinite(batch.inputs).all() for batch in module.train_dataloader())
    error = module.optimal("test") - module.last_step("test")[0].numpy()
    np.testing.assert_allclose(error, 0.0, atol=1e-12)
    assert any(note.startswith("3 absent rows inserted in 2 gap(s)") for note in module.notes)
    assert ready(values, minutes=stamps, gap=Gap("segment")).prepared.segments.bounds.tolist() == [[0, 20], [20, 83], [83, 97]]


def test_max_gap_lets_windows_cross():
    stamps = np.delete(np.arange(100), [20, 21, 85])

    assert ready(walk(97, 1), minutes=stamps, max_gap="2m").prepared.segments.bounds.tolist() == [[0, 20], [20, 97]]


def test_fewer_windows_than_a_batch_are_one_smaller_batch():
    module = ready(walk(54), split=[44, 5, 5], batch_size=128)

    assert (module.n_windows("train"), module.n_training_batches) == (40, 1)
    assert [len(batch.inputs) for batch in module.train_dataloader()] == [40]


def test_the_notes_are_the_whole_account():
    values = walk()
    values[0, 0] = values[30, 1] = np.nan
    values[:, 1] = np.where(np.arange(100) < 75, np.where(np.isnan(values[:, 1]), np.nan, 3.0), values[:, 1])
    minutes = np.where(np.arange(100) < 60, np.arange(100), np.arange(100) + 5)
    notes = ready(values, minutes=minutes).notes

    assert notes == [
        "100 rows, 2024-01-01 00:00:00 to 2024-01-01 01:44:00",
        "features: x0, x1; targets: the features",
        "1 time gap from 2024-01-01 00:59:00 to 2024-01-01 01:05:00 (0:06:00), the step is 0:01:00: no window crosses it",
        "dropped 1 leading row(s): missing values in x0",
        "x1: 1 of 99 values missing (1.0%), 1 filled from the past; none is a target",
        "train: 69 rows, 61 windows, 2024-01-01 00:01:00 to 2024-01-01 01:14:00",
        "val: 10 rows, 10 windows, 2024-01-01 01:15:00 to 2024-01-01 01:24:00",
        "test: 20 rows, 20 windows, 2024-01-01 01:25:00 to 2024-01-01 01:44:00",
        "scaled over all rows by the observed training rows; constant there, left at scale 1: x1",
    ]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"window": 0}, "data.window must be at least 1, got 0"),
        ({"horizon": 0}, "data.horizon must be at least 1, got 0"),
        ({"stride": -1}, "data.stride must be at least 1, got -1"),
        ({"batch_size": 0}, "data.batch_size must be at least 1, got 0"),
        ({"num_workers": -1}, "data.num_workers must be at least 0, got -1"),
        ({"seed": -1}, "data.seed must be at least 0, got -1"),
        ({"sampling": "contigous"}, "data.sampling must be one of .*, got 'contigous'; did you mean contiguous"),
        (
            {"sampling": "contiguous", "stride": 2},
            r"data.stride must be 1 with data.sampling=contiguous, got 2: .*; use data.s",
        ),
        ({"scale": "globl"}, "data.scale must be one of .*, got 'globl'; did you mean global"),
        ({"supervision": "al"}, "data.supervision must be one of .*, got 'al'; did you mean all"),
        ({"split": [0.9, 0.0, 0.1]}, "val part: it has 0 rows"),
        ({"split": [0.9, 0.2, 0.1]}, "sum to 1.2"),
        ({"folds": Folds(4), "fold": 4}, "data.fold must be from 0 to 3, because data.folds.n=4, got 4"),
        ({"folds": Folds(4), "split": [0.6, 0.2, 0.2]}, "data.split and data.folds.n exclude each other"),
        ({"folds": Folds(400)}, "do not fit into the 100 rows of the time axis: the blocks of fold 0 would be empty"),
        ({"embargo": -1}, "data.embargo must be a number of rows, a duration such as 2h, or null, got -1"),
        ({"max_gap": "soon"}, "data.max_gap must be a number and a unit .* got 'soon'"),
        ({"max_gap": "3m", "gap": Gap("ignore")}, "data.max_gap=3m has no meaning with data.gap.policy=ignore"),
        ({"window": 101}, "train part: it has 70 rows, data.window=101 and data.horizon=1 need 102 rows"),
        ({"targets": ["x10"]}, "data.targets must be one of .*, got 'x10'; did you mean x1"),
        ({"features": ["x0", "x0"]}, "data.features names a column twice"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_keys_without_sense_end_in_one_line(keys, message):
    with pytest.raises(ValueError, match=message) as raised:
        ready(walk(), **keys)
    assert "\n" not in str(raised.value)


def test_answers_before_setup_are_refused():
    with pytest.raises(RuntimeError, match="call setup"):
        Windows(table(walk())).n_windows("train")


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match=r"the split must be one of .*, got 'tset'; did you mean test"):
        ready(walk()).n_windows("tset")


def test_policies_reach_the_data():
    values = walk()
    values[50] = np.nan
    with pytest.raises(ValueError, match=r"data.missing.policy=fill"):
        ready(values, missing=Missing("error"))
    with pytest.raises(ValueError, match=r"data.gap.policy=segment"):
        ready(walk(), minutes=np.arange(100) + 9 * (np.arange(100) > 50), gap=Gap("error"))


def test_batches_have_the_dtype_and_statistics_stay_float64():
    module = Windows(table(walk()))
    module.dtype = torch.float32
    module.setup()

    batch = next(iter(module.train_dataloader()))
    assert (batch.inputs.dtype, batch.targets.dtype, batch.observed.dtype) == (
        torch.float32,
        torch.float32,
        torch.bool,
    )
    assert module.state_dict()["scaler"]["mean"].dtype == torch.float64


def test_setup_and_an_epoch_make_no_tensor_of_the_size_of_all_windows():
    class Largest(TorchDispatchMode):
        bytes = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                Largest.bytes = max(Largest.bytes, result.untyped_storage().nbytes())
            return result

    module = Windows(table(walk(3000, 4)), window=60, batch_size=16)
    with Largest():
        module.setup()
        for _ in module.train_dataloader():
            pass

    table_bytes, windows_bytes = 3000 * 4 * 8, module.n_windows("train") * 60 * 4 * 8
    assert 0 < Largest.bytes <= 2 * table_bytes < windows_bytes


class Recorder(L.LightningModule):
    """Trains a line and remembers each batch it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(2, 2, dtype=torch.float64)
        self.seen: list[tuple[int, int, float]] = []

    def training_step(self, batch, batch_idx):
        self.seen.append((self.current_epoch, batch_idx, float(batch.inputs.sum())))
        return self.validation_step(batch)

    def validation_step(self, batch):
        return ((self.line(batch.inputs[:, -1]) - batch.targets[:, 0, 0]) ** 2).mean()

    def test_step(self, batch):
        return self.validation_step(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Progress(L.Callback):
    """What the wiring does: reports finished batches; here it also writes a checkpoint at one step and stops there."""

    def __init__(self, file, stop) -> None:
        self.file, self.stop = file, stop

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.datamodule.batches_done(trainer.current_epoch, batch_idx + 1)
        if trainer.global_step == self.stop:
            trainer.save_checkpoint(self.file)
            trainer.should_stop = True


def fit(folder, *, stop=None, resume=False, module=None, **limits) -> Recorder:
    torch.manual_seed(0)
    recorder, file = Recorder(), folder / "stopped.ckpt"
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[Progress(file, stop)],
        **{"max_epochs": 3, **limits},
    )
    trainer.fit(recorder, datamodule=module or Windows(table(walk())), ckpt_path=file if resume else None, weights_only=True)
    recorder.checkpoint = trainer.save_checkpoint
    return recorder


lightning_run = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:.*`isinstance.treespec, LeafSpec.` is deprecated"
)


@lightning_run
@pytest.mark.parametrize("steps", [1, 5, 13, 20], ids=lambda steps: f"stopped after {steps} of 27 steps")
def test_a_resumed_run_sees_the_batches_of_the_uninterrupted_one(tmp_path, steps):
    whole = fit(tmp_path)
    assert len(whole.seen) == len({total for *_, total in whole.seen}) == 27

    stopped = fit(tmp_path, stop=steps)
    resumed = fit(tmp_path, resume=True)

    assert stopped.seen == whole.seen[:steps]
    assert resumed.seen == whole.seen[steps:]
    for weight, other in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(weight, other)


@lightning_run
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_resumes_from_the_end_of_an_epoch(tmp_path, epochs):
    whole = fit(tmp_path)
    fit(tmp_path, max_epochs=epochs).checkpoint(tmp_path / "stopped.ckpt")

    assert fit(tmp_path, resume=True).seen == whole.seen[9 * epochs :]


@lightning_run
@pytest.mark.parametrize("steps", [3, 4], ids=["inside an epoch", "after an epoch of 4"])
def test_a_resumed_run_goes_on_with_the_chunks_of_the_uninterrupted_one(tmp_path, steps):
    def module():
        return Windows(table(walk()), sampling="contiguous", batch_size=5)

    whole = fit(tmp_path, module=module())
    assert whole.seen[:4] == [(0, batch, total) for (_, batch, total) in whole.seen[4:8]]
    fit(tmp_path, module=module(), stop=steps)

    assert fit(tmp_path, module=module(), resume=True).seen == whole.seen[steps:]


@lightning_run
def test_a_run_with_fewer_batches_in_an_epoch_resumes_as_well(tmp_path):
    whole = fit(tmp_path, limit_train_batches=4)
    fit(tmp_path, limit_train_batches=4, stop=6)
    resumed = fit(tmp_path, limit_train_batches=4, resume=True)

    assert len(whole.seen) == 12
    assert resumed.seen == whole.seen[6:]


@lightning_run
def test_workers_resume_in_the_right_epoch(tmp_path):
    def module():
        return Windows(table(walk()), num_workers=1)

    whole = fit(tmp_path, module=module())
    fit(tmp_path, module=module(), stop=13)
    resumed = fit(tmp_path, module=module(), resume=True)

    assert resumed.seen == whole.seen[13:]


@lightning_run
def test_testing_from_a_checkpoint_does_not_move_the_next_training(tmp_path):
    module = Windows(table(walk()))
    first = fit(tmp_path, module=module, stop=5)
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    trainer.test(Recorder(), datamodule=module, ckpt_path=tmp_path / "stopped.ckpt", verbose=False, weights_only=True)

    assert fit(tmp_path, module=module, stop=5).seen == first.seen


@lightning_run
def test_a_second_fit_starts_at_the_beginning_again(tmp_path):
    module = Windows(table(walk()))
    first = fit(tmp_path, module=module, stop=5)

    assert fit(tmp_path, module=module, stop=5).seen == first.seen


@lightning_run
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"batch_size": 9}, "batch_size was 8 and is 9"),
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"sampling": "contiguous"}, "sampling was shuffled and is contiguous"),
    ],
    ids=["batch size", "seed", "sampling"],
)
def test_resuming_inside_an_epoch_with_another_order_is_refused(tmp_path, keys, message):
    fit(tmp_path, stop=5)

    with pytest.raises(ValueError, match=message):
        fit(tmp_path, module=Windows(table(walk()), **keys), resume=True)


def test_the_position_is_of_finished_batches_and_turns_over_at_the_end_of_an_epoch():
    module = ready(walk())
    iterator = iter(module.train_dataloader())
    next(iterator)
    assert module.state_dict()["position"] == {"epoch": 0, "batch": 0}
    module.batches_done(2, 3)
    assert module.state_dict()["position"] == {"epoch": 2, "batch": 3}
    module.batches_done(2, 9)
    assert module.state_dict()["position"] == {"epoch": 3, "batch": 0}


@pytest.mark.parametrize("first", ["setup", "load"])
def test_the_checkpoints_scaler_scales_other_data(first, caplog):
    trained = ready(walk())
    module = Windows(table(5 + 2 * walk()))
    with caplog.at_level(logging.WARNING):
        for step in ("setup", "load") if first == "setup" else ("load", "setup"):
            if step == "setup":
                module.setup()
            else:
                module.load_state_dict(trained.state_dict())

    assert module.scaler.equals(trained.scaler)
    assert "scaling by the checkpoint's statistics" in caplog.text
    targets = module.last_step("test")[0].numpy()
    np.testing.assert_allclose(module.to_original("test", targets)[:, 0], 5 + 2 * walk()[80:], rtol=1e-12)


def test_a_checkpoint_of_other_columns_is_refused():
    module = ready(walk(columns=3))
    with pytest.raises(ValueError, match="trained on the columns x0, x1, the data has x0, x1, x2"):
        module.load_state_dict(ready(walk()).state_dict())
