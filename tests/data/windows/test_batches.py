from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from statewise.data.segments.observed import Observed
from statewise.data.windows.batches import (
    Batch,
    BatchLoader,
    ContiguousBatch,
    ContiguousBatches,
    SequentialBatches,
    ShuffledBatches,
    WindowDataset,
)


def dataset(rows=50, features=3, *, window=4, horizon=2, supervision="last", starts=None) -> WindowDataset:
    values = torch.arange(rows * features, dtype=torch.float64).reshape(rows, features)
    observed = torch.arange(rows)[:, None] % torch.tensor([3, 4]) != 0
    starts = torch.arange(rows - window - horizon + 1) if starts is None else torch.tensor(starts)
    return WindowDataset(values, values[:, 1:3], observed, starts, window=window, horizon=horizon, supervision=supervision)


def by_slices(rows, start, *, window, horizon, supervision):
    """One window by plain slicing of three columns numbered 0 .. 3 * rows."""
    values = torch.arange(rows * 3, dtype=torch.float64).reshape(rows, 3)
    observed = torch.arange(rows)[:, None] % torch.tensor([3, 4]) != 0
    steps = range(window) if supervision == "all" else [window - 1]
    after = [slice(start + step + 1, start + step + 1 + horizon) for step in steps]
    return (
        values[start : start + window],
        torch.stack([values[rows, 1:3] for rows in after]),
        torch.stack([observed[rows] for rows in after]),
    )


@given(st.data(), st.sampled_from(["last", "all"]), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_a_batch_is_the_windows_cut_out_by_slices(data, supervision, window, horizon):
    rows = data.draw(st.integers(window + horizon, 30))
    windows = dataset(rows, window=window, horizon=horizon, supervision=supervision)
    chosen = data.draw(st.lists(st.integers(0, len(windows) - 1), min_size=1, max_size=5))

    batch = windows.__getitems__(chosen)

    for place, start in enumerate(chosen):
        expected = by_slices(rows, start, window=window, horizon=horizon, supervision=supervision)
        for part, want in zip(batch, expected, strict=True):
            assert torch.equal(part[place], want)


def test_a_list_and_a_tensor_of_indices_give_the_same_batch_and_so_does_one_by_one():
    windows = dataset(starts=[7, 3, 20])

    for part, other, third in zip(
        windows.__getitems__([2, 0]), windows.__getitems__(torch.tensor([2, 0])), windows[2], strict=True
    ):
        assert torch.equal(part, other)
        assert torch.equal(part[0], third)


def test_targets_alone_are_those_of_the_batches():
    windows = dataset()

    targets, observed = windows.targets()

    batch = windows.__getitems__(list(range(len(windows))))
    assert torch.equal(targets, batch.targets)
    assert torch.equal(observed, batch.observed)


@pytest.mark.parametrize("starts", [[-1], [45]], ids=["before the first row", "beyond the last row"])
def test_a_window_outside_the_table_is_refused(starts):
    with pytest.raises(ValueError, match="must lie within the 50 rows"):
        dataset(starts=starts)


def test_chunks_of_streams_say_in_every_batch_which_of_them_are_fresh():
    values, observed = torch.arange(20.0)[:, None], torch.ones(20, 1, dtype=torch.bool)
    fresh = torch.tensor([True, True, False, False, True])
    chunks = WindowDataset(values, values, observed, torch.tensor([0, 8, 4, 12, 16]), window=3, horizon=1, fresh=fresh)

    batches = list(BatchLoader(chunks, ContiguousBatches(len(chunks), 2)))

    assert all(isinstance(batch, ContiguousBatch) for batch in batches)
    assert [batch.inputs[:, 0, 0].tolist() for batch in batches] == [[0, 8], [4, 12], [16]]
    assert [batch.targets.flatten().tolist() for batch in batches] == [[3, 11], [7, 15], [19]]
    assert [batch.fresh.tolist() for batch in batches] == [[True, True], [False, False], [True]]
    assert isinstance(chunks[2], ContiguousBatch)
    assert not chunks[2].fresh


def test_an_index_outside_the_windows_is_refused():
    with pytest.raises((IndexError, RuntimeError)):
        dataset().__getitems__([45])


def test_unknown_supervision_is_refused():
    with pytest.raises(ValueError, match=r"data.supervision must be one of .*, got 'lst'; did you mean last"):
        dataset(supervision="lst")


class LargestTensor(TorchDispatchMode):
    """Notes the largest storage that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {
            argument.untyped_storage().data_ptr()
            for argument in torch.utils._pytree.tree_leaves(args)
            if isinstance(argument, torch.Tensor)
        }
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() not in given:
                self.bytes = max(self.bytes, leaf.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("supervision", ["last", "all"])
def test_no_tensor_of_the_size_of_all_windows_is_ever_made(supervision):
    rows, features, window, batch_size = 5000, 4, 60, 16
    with LargestTensor() as largest:
        values = torch.zeros(rows, features, dtype=torch.float64)
        windows = WindowDataset(
            values,
            values,
            torch.ones(rows, features, dtype=torch.bool),
            torch.arange(rows - window),
            window=window,
            horizon=1,
            supervision=supervision,
        )
        seen = sum(len(b.inputs) for b in BatchLoader(windows, ShuffledBatches(len(windows), batch_size, seed=0)))

    assert seen == rows - window
    table, batch = rows * features * 8, batch_size * window * features * 8
    assert batch <= largest.bytes <= max(table, batch)


@given(st.integers(1, 60), st.integers(1, 70), st.integers(0, 3), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_every_window_comes_exactly_once_in_an_epoch(n, batch_size, seed, epoch):
    for batches in (
        ShuffledBatches(n, batch_size, seed=seed, epoch=epoch),
        ContiguousBatches(n, batch_size, epoch=epoch),
        SequentialBatches(n, batch_size),
    ):
        epoch_of_batches = list(batches)
        assert len(epoch_of_batches) == len(batches) == -(-n // batch_size)
        assert sorted(torch.cat(epoch_of_batches).tolist()) == list(range(n))
        assert all(len(batch) == batch_size for batch in epoch_of_batches[:-1])


def test_the_order_comes_from_seed_and_epoch_only():
    def order(seed, epoch):
        return torch.cat(list(ShuffledBatches(100, 7, seed=seed, epoch=epoch))).tolist()

    first = order(0, 0)
    torch.rand(5)
    assert order(0, 0) == first
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


def test_chunks_of_streams_come_in_the_same_order_in_every_epoch():
    batches = ContiguousBatches(5, 2)
    first = [batch.tolist() for batch in batches]
    batches.set_epoch(1)

    assert first == [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4]]


def test_sequential_batches_are_in_order_and_keep_the_last():
    assert [batch.tolist() for batch in SequentialBatches(5, 2)] == [[0, 1], [2, 3], [4]]


@given(st.integers(1, 40), st.integers(1, 12), st.data())
@settings(max_examples=30, deadline=None)
def test_an_epoch_can_start_at_any_batch(n, batch_size, data):
    make = data.draw(st.sampled_from([partial(ShuffledBatches, seed=3), ContiguousBatches]))
    whole = [batch.tolist() for batch in make(n, batch_size, epoch=2)]
    start = data.draw(st.integers(0, len(whole) - 1))

    resumed = make(n, batch_size, epoch=2, batch=start)
    resumed.set_epoch(2)

    assert len(resumed) == len(whole)
    assert [batch.tolist() for batch in resumed] == whole[start:]
    assert [batch.tolist() for batch in resumed] == whole


def test_the_next_epoch_starts_at_its_first_batch():
    batches = ShuffledBatches(10, 3, seed=0, epoch=0, batch=2)
    batches.set_epoch(1)

    assert batches.state_dict() == {"epoch": 1, "batch": 0}
    assert len(list(batches)) == 4


def test_the_end_of_an_epoch_is_the_start_of_the_next():
    assert ShuffledBatches(10, 3, seed=0, epoch=5, batch=4).state_dict() == {"epoch": 6, "batch": 0}


def test_a_batch_beyond_the_epoch_is_refused():
    with pytest.raises(ValueError, match="no batch 5 in an epoch of 4 batches"):
        ShuffledBatches(10, 3, seed=0, batch=5)


def test_no_window_and_a_batch_size_below_1_are_refused():
    with pytest.raises(ValueError, match="no window to train on"):
        ShuffledBatches(0, 3, seed=0)
    with pytest.raises(ValueError, match=r"data.batch_size must be at least 1, got 0"):
        ShuffledBatches(10, 0, seed=0)
    with pytest.raises(ValueError, match=r"data.batch_size must be at least 1, got -2"):
        SequentialBatches(10, -2)


def test_making_an_iterator_leaves_the_global_generator_alone():
    loader = BatchLoader(dataset(), SequentialBatches(45, 8))
    before = torch.get_rng_state()
    list(loader)

    assert torch.equal(torch.get_rng_state(), before)


def test_the_loader_gives_ready_batches():
    for batch in BatchLoader(dataset(), SequentialBatches(45, 8)):
        assert isinstance(batch, Batch)
        assert batch.inputs.shape[1:] == (4, 3)
        assert batch.targets.shape[1:] == batch.observed.shape[1:] == (1, 2, 2)


@pytest.mark.parametrize("supervision", ["last", "all"])
def test_targets_can_be_any_columns_in_any_order_and_their_flags_eight_in_a_byte(supervision):
    values = torch.arange(50 * 12, dtype=torch.float64).reshape(50, 12)
    chosen = [11, 2, 7, 0, 1, 3, 4, 5, 9]
    flags = torch.arange(50)[:, None] % torch.arange(2, 11) != 0
    observed = Observed(50)
    for column in flags.T:
        observed.add(column.numpy())
    how = {"window": 4, "horizon": 2, "supervision": supervision}
    starts = torch.arange(45, dtype=torch.int32)

    plain = WindowDataset(values, values[:, chosen].contiguous(), flags, starts, **how)
    packed = WindowDataset(values, values, observed.tensor(range(9)), starts, target_columns=chosen, **how)

    for part, other in zip(plain.__getitems__([3, 44, 0]), packed.__getitems__([3, 44, 0]), strict=True):
        assert torch.equal(part, other)
        assert other.is_contiguous()
    for part, other in zip(plain.targets(), packed.targets(), strict=True):
        assert torch.equal(part, other)
