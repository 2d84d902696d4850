"""The Mamba-2 layer: how its parameters begin, the paper's equations, one result for every way to run it, its contracts."""

import copy
import io
import math
from typing import Any

import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from torch import Tensor, nn

from statewise import assembly, schemas
from statewise.models.forecaster import Forecaster, Layer
from statewise.models.mamba2 import Mamba2, Mamba2State, mamba2
from statewise.optim import adamw, parameter_groups
from statewise.scan import recurrence

TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-5}
DATA = {"n_features": 3, "n_outputs": 1, "target_inputs": (0,), "targets_are_levels": True, "horizon": 1}


def layer(dtype: torch.dtype = torch.float64, seed: int = 0, **options: Any) -> Mamba2:
    """A small layer with every parameter drawn at random: none hides behind a one or a zero."""
    torch.manual_seed(seed)
    given = {"d_model": 6, "headdim": 3, "d_state": 5, "n_groups": 2, "chunk_size": 8}
    made = Mamba2(**(given | options)).to(dtype)
    with torch.no_grad():
        made.D.normal_()
        made.norm.weight.uniform_(0.5, 1.5)
        made.dt_bias.uniform_(-3, 1)
    return made


def literal(made: Mamba2, x: Tensor, state: Mamba2State) -> tuple[Tensor, Mamba2State]:
    """The layer as the paper writes it."""
    (c, k), groups, p = made.conv_weight.shape, made.n_groups, made.headdim
    heads = made.A_log.shape[0]
    z, xBC, dt = F.linear(x, made.in_proj.weight).split([heads * p, c, heads], dim=-1)
    past = torch.cat([state.conv, xBC], dim=1)  # (b k-1+t c)
    convolved = F.conv1d(past.transpose(1, 2), made.conv_weight[:, None], made.conv_bias, groups=c)
    bc = (c - heads * p) // 2
    u, B, C = F.silu(convolved).transpose(1, 2).split([heads * p, bc, bc], dim=-1)
    u, B, C = u.unflatten(-1, (heads, p)), B.unflatten(-1, (groups, -1)), C.unflatten(-1, (groups, -1))
    y, ssm = recurrence.ssd(u, F.softplus(dt + made.dt_bias), -made.A_log.exp(), B, C, state.ssm)
    y = ((y + made.D[:, None] * u).flatten(2) * F.silu(z)).unflatten(-1, (groups, -1))  # (b t g h*p/g)
    y = (y / (y.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(2) * made.norm.weight
    return F.linear(y, made.out_proj.weight), Mamba2State(past[:, past.shape[1] - (k - 1) :], ssm)


def error(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    largest = float((found - expected).abs().max()) if found.numel() else 0.0
    return largest / (float(expected.abs().max()) or 1.0) if expected.numel() else largest


def start(made: Mamba2, batch: int) -> Mamba2State:
    """A state that has already seen something."""
    return Mamba2State(*(torch.randn_like(part) for part in made.initial_state(batch)))


@pytest.mark.parametrize(
    "options", [{}, {"n_groups": 1}, {"n_groups": 4}, {"d_conv": 1}, {"d_conv": 2}, {"expand": 3}], ids=str
)
@pytest.mark.parametrize("t", [1, 3, 12, 37])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_outputs_and_gradients_are_the_papers(dtype: torch.dtype, t: int, options: dict) -> None:
    made = layer(dtype, **options)
    exact = copy.deepcopy(made).double()
    x, state = torch.randn(2, t, 6, dtype=dtype), start(made, 2)
    given = [x, *state]
    results = []
    for function, module, kind in ((made, made, dtype), (lambda *a: literal(exact, *a), exact, torch.float64)):
        leaves = [tensor.to(kind, copy=True).requires_grad_() for tensor in given]
        y, end = function(leaves[0], Mamba2State(*leaves[1:]))
        torch.manual_seed(1)
        # Not randn_like: that draws in the order of memory, which is the layer's own affair.
        loss = sum((part * torch.randn(part.shape, dtype=torch.float64).to(kind)).sum() for part in (y, *end))
        gradients = torch.autograd.grad(loss, [*leaves, *module.parameters()])
        results.append(dict(zip(NAMES, [y, *end, *gradients[:3]], strict=True)))
        results[-1] |= dict(zip(dict(module.named_parameters()), gradients[3:], strict=True))
    found, expected = results
    assert y.shape == (2, t, 6)
    errors = {name: error(found[name], expected[name]) for name in expected}
    assert max(errors.values()) <= TOLERANCE[dtype], errors


NAMES = ("y", "conv", "ssm", "dx", "dconv", "dssm")


def test_without_a_state_the_layer_starts_from_rest() -> None:
    made, x = layer(), torch.randn(2, 9, 6, dtype=torch.float64)
    rest = made.initial_state(2)
    assert not any(part.any() for part in rest)
    assert error(made(x)[0], literal(made, x, rest)[0]) <= 1e-10


@pytest.mark.parametrize("t", [1, 2, 20])
def test_the_last_step_alone_is_the_last_of_all(t: int) -> None:
    made = layer()
    x, state = torch.randn(2, t, 6, dtype=torch.float64, requires_grad=True), start(made, 2)
    y, end = made(x, state)
    last, last_end = made(x, state, last_only=True)
    assert last.shape == (2, 1, 6)
    leaves = [x, *made.parameters()]
    expected = torch.autograd.grad(y[:, -1].square().sum() + end.ssm.sum(), leaves)
    found = torch.autograd.grad(last.square().sum() + last_end.ssm.sum(), leaves)
    for one, all_steps in zip((last, *last_end, *found), (y[:, -1:], *end, *expected), strict=True):
        assert error(one, all_steps) <= 1e-12


@pytest.mark.parametrize("change", [1, 11, 12, 29])
def test_outputs_depend_on_no_later_input(change: int) -> None:
    made = layer()
    x = torch.randn(1, 30, 6, dtype=torch.float64)
    changed = x.clone()
    changed[:, change:] += 1
    y, other = made(x)[0], made(changed)[0]
    assert error(other[:, :change], y[:, :change]) <= 1e-13
    assert float((y[:, change] - other[:, change]).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_everything_has_the_dtype_of_the_parameters(dtype: torch.dtype) -> None:
    made = layer(dtype)
    x = torch.randn(2, 6, 6, dtype=dtype)
    y, state = made(x)
    y.sum().backward()
    y_t, next_state = made.step(x[:, 0], state)
    tensors = [y, *state, y_t, *next_state, *made.initial_state(2), *(p.grad for p in made.parameters())]
    assert {tensor.dtype for tensor in tensors if tensor is not None} == {dtype}


def test_under_mixed_precision_the_recurrence_keeps_float32() -> None:
    made = layer(torch.float32)
    x = torch.randn(2, 40, 6)
    expected, end = made(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = made(x)
        y_t, _ = made.step(x[:, 0], state)
    assert state.ssm.dtype == torch.float32
    assert error(y, expected) <= 0.05
    assert error(state.ssm, end.ssm) <= 0.05
    (y.float().sum() + y_t.float().sum()).backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in made.parameters())


@pytest.mark.parametrize("rate", [1e-6, 1e3], ids=["slow", "fast"])
@pytest.mark.parametrize("step", [-30.0, 10.0], ids=["short", "long"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_extreme_steps_and_rates_stay_finite(dtype: torch.dtype, step: float, rate: float) -> None:
    made = layer(dtype)
    nn.init.constant_(made.A_log, math.log(rate))
    nn.init.constant_(made.dt_bias, step)
    x = torch.randn(2, 50, 6, dtype=dtype, requires_grad=True)
    y, state = made(x)
    (y.square().sum() + state.ssm.sum()).backward()
    tensors = [y, *state, x.grad, *(parameter.grad for parameter in made.parameters())]
    assert all(tensor is not None and bool(tensor.isfinite().all()) for tensor in tensors)
    exact = copy.deepcopy(made).double()
    assert error(y, literal(exact, x.double(), exact.initial_state(2))[0]) <= TOLERANCE[dtype]


def many_heads(**options: Any) -> Forecaster:
    """A model with 2048 heads: enough to tell one distribution from another."""
    torch.manual_seed(0)
    return mamba2(**DATA, **({"d_model": 32, "expand": 16, "headdim": 1, "n_layers": 4, "d_state": 1} | options))


def starts(model: Forecaster) -> tuple[Tensor, Tensor]:
    """The step and the rate of every head as the model begins, in float64."""
    layers = [part for part in model.modules() if isinstance(part, Mamba2)]
    dt = torch.cat([F.softplus(part.dt_bias.detach().double()) for part in layers])
    return dt, torch.cat([part.A_log.detach().double().exp() for part in layers])


def is_uniform(values: Tensor, low: float, high: float) -> bool:
    """Within the bounds up to a rounding of float32, and by Kolmogorov and Smirnov's test evenly between them."""
    room = 1e-6 * (abs(low) + abs(high))
    inside = low - room <= float(values.min()) and float(values.max()) <= high + room
    return inside and scipy.stats.kstest(values.numpy(), scipy.stats.uniform(low, high - low).cdf).pvalue > 0.01


@pytest.mark.parametrize(
    ("options", "dt_range", "A_range"),
    [
        ({}, (0.001, 0.1), (1, 16)),
        ({"dt_min": 0.01, "dt_max": 2.0, "A_init_range": (0.5, 3.0)}, (0.01, 2.0), (0.5, 3.0)),
    ],
    ids=["defaults", "others"],
)
def test_in_the_whole_model_steps_begin_log_uniform_and_rates_uniform(
    options: dict, dt_range: tuple[float, float], A_range: tuple[float, float]
) -> None:
    dt, A = starts(many_heads(**options))
    assert len(dt) == 2048
    low, high = dt_range
    assert is_uniform(dt.log(), math.log(low), math.log(high))
    assert not is_uniform(dt, low, high)
    assert is_uniform(A, *A_range)
    assert not is_uniform(A.log(), math.log(A_range[0]), math.log(A_range[1]))
    # Drawn for every head by itself, in every layer anew.
    assert len(dt.unique()) > 2000
    assert abs(scipy.stats.spearmanr(dt, A).statistic) < 0.1


def test_the_softplus_of_the_bias_is_the_step_that_was_drawn() -> None:
    dt, A = starts(many_heads(dt_min=0.7, dt_max=0.7, A_init_range=(3.0, 3.0)))
    torch.testing.assert_close(dt, torch.full_like(dt, 0.7), rtol=1e-6, atol=0)
    torch.testing.assert_close(A, torch.full_like(A, 3.0), rtol=1e-6, atol=0)


def test_no_step_begins_below_the_floor() -> None:
    dt, _ = starts(many_heads(dt_min=1e-6, dt_max=1e-2, dt_init_floor=1e-4))
    on_floor = (dt < 1.0001e-4).double().mean()
    assert float(dt.min()) >= 1e-4 * (1 - 1e-6)
    assert float(on_floor) == pytest.approx(0.5, abs=0.05)
    assert is_uniform(dt[dt > 1.0001e-4].log(), math.log(1e-4), math.log(1e-2))


@pytest.mark.parametrize("precision", ["64-true", "32-true"])
def test_what_the_command_trains_begins_by_the_same_laws(precision: str) -> None:
    schemas.register()
    OmegaConf.register_new_resolver("new_folder", str, replace=True)
    sizes = ["model.d_model=32", "model.expand=16", "model.headdim=1", "model.n_layers=4", "model.d_state=1"]
    run = ["data=lti", "data.steps=200", "data.window=16", "model=mamba2", f"hardware.precision={precision}"]
    with initialize_config_module("statewise.conf", version_base="1.3"):
        config = compose("train", overrides=[*run, *sizes])
    torch.manual_seed(0)
    datamodule = assembly.build_data(config)
    task = assembly.build_task(config, datamodule, assembly.build_model(config, datamodule))
    dt, A = starts(task.model)
    assert len(dt) == 2048
    assert is_uniform(dt.log(), math.log(0.001), math.log(0.1))
    assert is_uniform(A, 1, 16)
    for part in task.modules():
        if isinstance(part, Mamba2):
            assert torch.equal(part.D, torch.ones_like(part.D))
            assert torch.equal(part.norm.weight, torch.ones_like(part.norm.weight))


SHRINK = {"in_proj.weight", "out_proj.weight", "conv_weight"}
KEEP = {"A_log", "D", "dt_bias", "norm.weight", "conv_bias"}


def decay_only(model: Forecaster) -> None:
    """A step with weight decay .5 and gradients of zero: only decay can move a parameter."""
    optimizer = adamw(parameter_groups(model), lr=0.1, weight_decay=0.5)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


def after_deepcopy(model: Forecaster) -> Forecaster:
    return copy.deepcopy(model)


def after_checkpoint(model: Forecaster) -> Forecaster:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = mamba2(**DATA, d_model=6, headdim=3)
    other.load_state_dict(torch.load(file))
    return other


@pytest.mark.parametrize("passed_on", [lambda model: model, after_deepcopy, after_checkpoint], ids=["new", "copied", "loaded"])
def test_weight_decay_moves_the_matrices_and_nothing_else(passed_on: Any) -> None:
    torch.manual_seed(0)
    original = mamba2(**DATA, d_model=6, headdim=3)
    model = passed_on(original)
    before = {name: value.clone() for name, value in original.state_dict().items()}
    decay_only(model)
    for name, parameter in model.named_parameters():
        inner = name.partition(".")[2] if name.startswith("ssm_") else ""
        shrinks = inner in SHRINK or name in {"input_proj.weight", "output_proj.weight"}
        assert shrinks or inner in KEEP or name in {"input_proj.bias", "output_proj.bias", "norm_0.weight", "norm_1.weight"}
        expected = before[name] * 0.95 if shrinks else before[name]
        assert torch.equal(parameter, before[name]) is not shrinks, name
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-6, atol=0)


def test_the_layer_tells_what_must_train_and_what_must_not_decay() -> None:
    made = layer()
    assert isinstance(made, Layer)
    names = {id(parameter): name for name, parameter in made.named_parameters()}
    assert set(names.values()) == SHRINK | KEEP
    assert {names[id(parameter)] for parameter in made.no_weight_decay()} == KEEP
    contract = made.health_contract()
    assert set(contract["trainable"]) == SHRINK | KEEP
    assert contract["constants"] == ()


def test_the_parameters_have_the_shapes_of_the_paper_and_all_train() -> None:
    made = layer()
    shapes = {name: tuple(parameter.shape) for name, parameter in made.named_parameters()}
    assert shapes == {
        "in_proj.weight": (2 * 12 + 2 * 2 * 5 + 4, 6),
        "conv_weight": (12 + 2 * 2 * 5, 4),
        "conv_bias": (12 + 2 * 2 * 5,),
        "dt_bias": (4,),
        "A_log": (4,),
        "D": (4,),
        "norm.weight": (12,),
        "out_proj.weight": (6, 12),
    }
    made(torch.randn(2, 6, 6, dtype=torch.float64))[0].square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.norm() > 0 for parameter in made.parameters())


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_the_batch_size_comes_from_the_input(batch: int) -> None:
    y, state = layer()(torch.randn(batch, 4, 6, dtype=torch.float64))
    assert y.shape == (batch, 4, 6)
    assert [part.shape[0] for part in state] == [batch, batch]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d_model": 0}, "model.d_model must be at least 1, got 0"),
        ({"d_state": 0}, "model.d_state must be at least 1, got 0"),
        ({"d_conv": 0}, "model.d_conv must be at least 1, got 0"),
        ({"expand": -1}, "model.expand must be at least 1, got -1"),
        ({"headdim": 0}, "model.headdim must be at least 1, got 0"),
        ({"n_groups": 0}, "model.n_groups must be at least 1, got 0"),
        ({"chunk_size": 0}, "model.chunk_size must be at least 1, got 0"),
        ({"n_layers": 0}, "model.n_layers must be at least 1, got 0"),
        ({"headdim": 48}, "model.headdim must divide model.expand * model.d_model = 64, got 48"),
        ({"headdim": 16, "n_groups": 3}, "model.n_groups must divide the 4 heads, got 3"),
        ({"dt_min": 0.0}, "model.dt_min must be above 0, got 0.0"),
        ({"dt_min": math.nan}, "model.dt_min must be above 0, got nan"),
        ({"dt_max": 1e-4}, "model.dt_max must be at least model.dt_min = 0.001, got 0.0001"),
        ({"dt_max": math.inf}, "model.dt_max must be at least model.dt_min = 0.001, got inf"),
        ({"dt_init_floor": -1.0}, "model.dt_init_floor must not be negative, got -1.0"),
        ({"A_init_range": (1.0,)}, "model.A_init_range must be two positive numbers, ascending, got [1.0]"),
        ({"A_init_range": (0.0, 1.0)}, "model.A_init_range must be two positive numbers, ascending, got [0.0, 1.0]"),
        ({"A_init_range": (2.0, 1.0)}, "model.A_init_range must be two positive numbers, ascending, got [2.0, 1.0]"),
        ({"backend": "cuda"}, "model.backend must be one of auto, torch, triton, got 'cuda'"),
        ({"norm": "batch"}, "model.norm must be one of layer, rms, none, got 'batch'"),
        ({"dropout": 1.0}, "model.dropout must be at least 0 and below 1, got 1.0"),
        ({"anchor": "lst"}, "model.anchor must be one of auto, last, none, got 'lst'; did you mean last?"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused_in_one_line(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is compared below
        mamba2(**{**DATA, **arguments})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
