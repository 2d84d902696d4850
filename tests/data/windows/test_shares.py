import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statewise.data.windows.batches import (
    Batch,
    BatchLoader,
    ContiguousBatch,
    ContiguousBatches,
    SequentialBatches,
    ShuffledBatches,
    WindowDataset,
)
from statewise.data.windows.shares import PaddedWindows, Share, SharedBatches


def shares(processes: int, streams: int | None = None) -> list[Share]:
    return [Share(rank, processes, streams) for rank in range(processes)]


def dataset(fresh: torch.Tensor | None = None) -> WindowDataset:
    values = torch.arange(60, dtype=torch.float64).reshape(30, 2)
    return WindowDataset(
        values, values, torch.ones(30, 2, dtype=torch.bool), torch.arange(20), window=4, horizon=2, fresh=fresh
    )


@given(st.integers(0, 50), st.integers(1, 9))
def test_the_shares_of_a_batch_are_all_of_it_in_order_and_differ_by_one_row_at_most(size, processes):
    parts = [share.rows(size) for share in shares(processes)]

    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(size))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)  # where rows are few they are those of the first processes


@given(st.integers(1, 40), st.integers(1, 9), st.data())
def test_a_stream_stays_with_its_process_also_in_a_smaller_batch(streams, processes, data):
    smaller = data.draw(st.integers(0, streams))
    for share in shares(processes, streams):
        full, part = (range(10_000)[share.rows(size)] for size in (streams, smaller))
        assert set(part) == {stream for stream in full if stream < smaller}


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 5), st.booleans())
def test_all_processes_have_the_same_number_of_batches_and_every_window_once(n, batch_size, processes, shuffled):
    def batches():
        return ShuffledBatches(n, batch_size, seed=3) if shuffled else SequentialBatches(n, batch_size)

    whole = list(batches())
    by_process = [list(SharedBatches(batches(), share)) for share in shares(processes)]

    for place, batch in enumerate(whole):
        parts = [own[place] for own in by_process]
        assert torch.equal(torch.cat([part for part in parts if part[0] >= 0]), batch)
        assert all(len(part) == 1 and (part < 0).all() for part in parts[len(batch) :])  # padding
    assert {len(own) for own in by_process} == {len(whole)}
    assert {len(SharedBatches(batches(), share)) for share in shares(processes)} == {len(whole)}


def test_lightning_finds_the_sampler_whose_epoch_it_sets():
    batches = ShuffledBatches(10, 4, seed=0)
    shared = SharedBatches(batches, Share(1, 2))
    before = [part.tolist() for part in shared]
    shared.sampler.set_epoch(1)
    assert batches.epoch == 1
    assert [part.tolist() for part in shared] != before


def test_padding_is_a_real_window_that_is_not_observed():
    windows = PaddedWindows(dataset())
    padding = windows.__getitems__(torch.tensor([-1 - 7]))
    real = windows.__getitems__(torch.tensor([7]))
    assert isinstance(padding, Batch)
    assert torch.equal(padding.inputs, real.inputs)
    assert real.observed.all()
    assert not padding.observed.any()


def test_padding_goes_on_with_no_stream():
    windows = PaddedWindows(dataset(torch.zeros(20, dtype=torch.bool)))
    padding = windows.__getitems__(torch.tensor([-1]))
    assert isinstance(padding, ContiguousBatch)
    assert padding.fresh.all()
    assert not windows.__getitems__(torch.tensor([0])).fresh.any()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_every_process_its_part_of_every_batch(workers):
    fresh = torch.arange(20) < 4
    parts = []
    for share in shares(2, streams=4):
        batches = SharedBatches(ContiguousBatches(17, 4), share)
        parts.append(list(BatchLoader(PaddedWindows(dataset(fresh)), batches, num_workers=workers)))
    assert [len(part) for part in parts] == [5, 5]
    starts = [[batch.inputs[:, 0, 0].tolist() for batch in part] for part in parts]
    assert starts[0] == [[0, 2], [8, 10], [16, 18], [24, 26], [32]]
    assert starts[1] == [[4, 6], [12, 14], [20, 22], [28, 30], [32]]
    assert not parts[1][-1].observed.any()
