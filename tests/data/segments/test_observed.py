import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.segments.observed import Observed, unpacked


def observed(flags: np.ndarray) -> Observed:
    made = Observed(len(flags))
    for column in flags.T:
        made.add(np.ascontiguousarray(column))
    return made


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_flags_come_back_whatever_they_are(rows, columns, seed):
    flags = np.random.default_rng(seed).random((rows, columns)) < 0.8
    chosen = np.random.default_rng(seed).permutation(columns)[: max(1, columns // 2)].tolist()

    made = observed(flags)

    for again in (made, Observed.of(rows, made.bits)):
        assert torch.equal(unpacked(again.tensor(chosen), len(chosen)), torch.from_numpy(flags[:, chosen]))
        for column in range(columns):
            np.testing.assert_array_equal(again.column(column), flags[:, column])


def test_columns_without_a_gap_take_no_memory():
    made = observed(np.ones((1000, 3), dtype=bool))
    assert made.bits == [None, None, None]
    assert made.tensor([0, 2]).untyped_storage().nbytes() == 1


def test_eight_columns_with_gaps_take_a_byte_a_row():
    flags = np.ones((1000, 16), dtype=bool)
    flags[7] = False
    assert observed(flags).tensor(range(16)).untyped_storage().nbytes() == 2000
