"""The GRU layer: the equations of the paper, in the precision of its parameters; test_layer_contract.py has the rest."""

import pytest
import torch
from torch import Tensor

from statewise.models.gru import GRU, gru
from statewise.optim import parameter_groups


def layer(dtype: torch.dtype = torch.float64) -> GRU:
    torch.manual_seed(0)
    return GRU(d_model=6).to(dtype)


def literal(made: GRU, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The layer as the paper writes it."""
    W, V, b, c = made.gru.all_weights[0]
    outputs = []
    for x_t in x.unbind(1):
        (r, z, u), (r_h, z_h, u_h) = (x_t @ W.T + b).chunk(3, 1), (h @ V.T + c).chunk(3, 1)
        z = torch.sigmoid(z + z_h)
        h = (1 - z) * torch.tanh(u + torch.sigmoid(r + r_h) * u_h) + z * h
        outputs.append(h)
    return torch.stack(outputs, 1), h


def assert_near(value: Tensor, exact: Tensor, bound: float) -> None:
    assert bool((value - exact).abs().max() <= bound * exact.abs().max())


@pytest.mark.parametrize("t", [1, 37])
def test_outputs_and_gradients_are_the_definition(t: int) -> None:
    made = layer()
    x = torch.randn(3, t, 6, dtype=torch.float64, requires_grad=True)
    h0 = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    results = []
    for y, state in (made(x, h0), literal(made, x, h0)):
        grads = torch.autograd.grad(y.square().sum() + state.sum(), [x, h0, *made.parameters()])
        results.append([y, state, *grads])
    for value, exact in zip(*results, strict=True):
        assert_near(value, exact, 1e-12)


def test_mixed_precision_leaves_the_recurrence_in_the_dtype_of_its_parameters() -> None:
    made = layer(torch.float32)
    x = torch.randn(2, 30, 6)
    exact, end = made(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = made(x.bfloat16().float())
        y_t, state_t = made.step(x[:, 0].bfloat16(), made.initial_state(2))
        assert torch.equal(made(x)[0], exact)
    assert {tensor.dtype for tensor in (y, state, y_t, state_t)} == {torch.float32}
    assert bool((state - end).abs().max() < 0.02)


def test_both_biases_get_the_gradient_of_their_sum() -> None:
    made = layer()
    made(torch.randn(2, 9, 6, dtype=torch.float64), last_only=True)[0].square().sum().backward()
    _, _, b, c = (parameter.grad for parameter in made.gru.all_weights[0])
    assert_near(b[:12], c[:12], 1e-14)
    assert bool((b != 0).all())
    assert bool((c != 0).all())
    assert bool((b[12:] != c[12:]).all())


def test_all_its_parameters_must_train_and_its_biases_do_not_decay() -> None:
    made = layer()
    assert set(made.health_contract()["trainable"]) == {name for name, _ in made.named_parameters()}
    decay, exempt = parameter_groups(made)
    assert decay["param_names"] == ["gru.weight_ih_l0", "gru.weight_hh_l0"]
    assert exempt["param_names"] == ["gru.bias_ih_l0", "gru.bias_hh_l0"]


def test_the_forecaster_of_grus_has_no_other_nonlinearity_and_keeps_every_option() -> None:
    model = gru(
        n_features=3,
        n_outputs=4,
        target_inputs=(0, 2),
        targets_are_levels=True,
        horizon=2,
        d_model=5,
        n_layers=3,
        norm="rms",
        linear_skip=2,
        checkpoint_blocks=True,
    )
    assert (model.activation, model.n_layers, model.linear_skip, model.anchor_inputs) == (None, 3, 2, (0, 2))
    assert model.checkpoint_blocks
    assert not any(name.startswith("glu") for name, _ in model.named_children())
    y, state = model.eval()(torch.randn(4, 7, 3), last_only=True)
    assert y.shape == (4, 1, 4)
    assert [h.shape for h in state.layers] == [(4, 5)] * 3


@pytest.mark.parametrize("option", ["d_model", "n_layers"])
def test_sizes_below_one_are_refused(option: str) -> None:
    data = {"n_features": 1, "n_outputs": 1, "target_inputs": (0,), "targets_are_levels": True, "horizon": 1}
    with pytest.raises(ValueError, match=rf"model.{option} must be at least 1, got 0"):
        gru(**data, **{option: 0})
