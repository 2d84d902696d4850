"""The definition of the recurrence, checked against numbers worked out by hand."""

import pytest
import torch

from statewise.scan.recurrence import scan


def test_three_steps_by_hand() -> None:
    A_bar = torch.tensor([[0.5, 1.0], [0.0, 0.5]])
    v = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])
    h0 = torch.tensor([[2.0, 4.0]])
    expected = torch.tensor([[[6.0, 2.0], [5.0, 2.0], [4.5, 1.0]]])
    assert torch.equal(scan(A_bar, v, h0), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_states_keep_the_dtype_and_need_no_batch_of_a_fixed_size(dtype: torch.dtype) -> None:
    for batch in (1, 5):
        h = scan(torch.eye(3, dtype=dtype), torch.ones(batch, 4, 3, dtype=dtype), torch.zeros(batch, 3, dtype=dtype))
        assert h.dtype == dtype
        assert torch.equal(h[:, -1], torch.full((batch, 3), 4.0, dtype=dtype))


def test_a_constant_input_gives_a_geometric_sum() -> None:
    h = scan(torch.tensor([[0.5]]), torch.ones(1, 20, 1), torch.zeros(1, 1))
    expected = 2 * (1 - 0.5 ** torch.arange(1, 21))
    torch.testing.assert_close(h[0, :, 0], expected)


def test_gradients_reach_all_three_arguments() -> None:
    inputs = [
        torch.randn(3, 3, dtype=torch.float64, requires_grad=True),
        torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True),
        torch.randn(2, 3, dtype=torch.float64, requires_grad=True),
    ]
    assert torch.autograd.gradcheck(scan, inputs)
