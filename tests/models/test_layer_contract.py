"""What every sequence layer owes the forecaster: one result for every way to run it, states that follow their streams.

A layer class of the package that is missing in LAYERS fails the first test.
"""

import copy
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import statewise.models
from statewise.models.dense_ssm import DenseSSM
from statewise.models.diagonal_ssm import DiagonalSSM
from statewise.models.forecaster import Forecaster, Layer
from statewise.models.gru import GRU
from statewise.models.mamba2 import Mamba2
from statewise.models.nlinear import NLinear
from statewise.models.state import leaves, map_state, with_leaves

# Small, with steps large enough for the state to matter, and chunks of the fast forms shorter than the sequences here.
MAMBA = {"d_model": 8, "d_state": 5, "headdim": 4, "dt_min": 0.05, "dt_max": 1.0, "chunk_size": 16}
DIAGONAL = {"d_model": 6, "d_state": 4, "step_min": 0.05, "step_max": 1.0}
LAYERS: dict[str, Callable[[], Layer]] = {
    "dense": lambda: DenseSSM(d_model=3, d_state=5),
    "dense D": lambda: DenseSSM(d_model=3, d_state=5, skip=True),
    "dense zoh": lambda: DenseSSM(d_model=3, d_state=5, discretization="zoh"),
    "dense zoh D": lambda: DenseSSM(d_model=3, d_state=5, discretization="zoh", skip=True),
    "dense wide state": lambda: DenseSSM(d_model=3, d_state=40),
    "mamba2": lambda: Mamba2(**MAMBA),
    "mamba2 groups": lambda: Mamba2(**MAMBA, n_groups=2),
    "mamba2 conv 1": lambda: Mamba2(**MAMBA, d_conv=1),
    "diagonal": lambda: DiagonalSSM(**DIAGONAL),
    "diagonal inv bilinear": lambda: DiagonalSSM(**DIAGONAL, init="s4d_inv", discretization="bilinear"),
    "diagonal ring": lambda: DiagonalSSM(**DIAGONAL, init="ring"),
    "diagonal ring bilinear no D": lambda: DiagonalSSM(**DIAGONAL, init="ring", discretization="bilinear", skip=False),
    "gru": lambda: GRU(d_model=6),
}
# They run and step like layers, but map features to predictions.
MODELS = {Forecaster, NLinear}

every_layer = pytest.mark.parametrize("name", LAYERS)
both_precisions = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["f64", "f32"]
)


def made(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """A layer in which no two entries of a vector are equal: ones and zeros hide mistakes."""
    torch.manual_seed(0)
    layer = LAYERS[name]()
    assert isinstance(layer, nn.Module)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.empty_like(parameter).uniform_(0.05, 0.3))
    return layer.to(dtype)


def inputs(layer: Any, b: int = 3, t: int = 74, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(b, t, layer.width, dtype=dtype)


def random_state(layer: Any, b: int = 3) -> Any:
    return map_state(torch.randn_like, layer.initial_state(b))


def chunked(layer: Any, x: Tensor, state: Any, length: int) -> tuple[Tensor, Any]:
    """The outputs and the last state, `length` steps at a time."""
    parts = []
    for chunk in x.split(length, dim=1):
        y, state = layer(chunk, state)
        parts.append(y)
    return torch.cat(parts, dim=1), state


def stepped(layer: Any, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    """The outputs and the last state, step by step."""
    parts = []
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        parts.append(y_t)
    return torch.stack(parts, dim=1), state


def assert_close(found: Any, exact: Any, tolerance: float = 1e-10) -> None:
    """Two trees of tensors are one: the largest difference in each tensor is below tolerance times its largest entry."""
    pairs = list(zip(tree_leaves(found), tree_leaves(exact), strict=True))
    for a, b in pairs:
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if b.numel():
            # What is smaller than any normal number is zero.
            least = torch.finfo(b.dtype).tiny
            assert float((a - b).detach().abs().max()) <= tolerance * float(b.detach().abs().max()) + least


def gradients(layer: Any, loss: Tensor, *others: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [*others, *layer.parameters()]))


def loss_of(y: Tensor, state: Any) -> Tensor:
    """A scalar to which every entry of outputs and state contributes with a weight of its own."""
    generator = torch.Generator().manual_seed(1)
    weigh = lambda part: (part * torch.rand(part.shape, generator=generator, dtype=part.dtype)).sum()  # noqa: E731
    return weigh(y.square()) + sum(weigh(leaf) for leaf in leaves(state))


def test_every_layer_of_the_package_is_in_the_table() -> None:
    classes = set()
    for module in pkgutil.iter_modules(statewise.models.__path__):
        loaded = importlib.import_module(f"statewise.models.{module.name}")
        for kind in vars(loaded).values():
            own = inspect.isclass(kind) and kind.__module__ == loaded.__name__ and issubclass(kind, nn.Module)
            if own and all(hasattr(kind, method) for method in ("forward", "step", "initial_state")):
                classes.add(kind)
    assert {type(make()) for make in LAYERS.values()} == classes - MODELS
    # A model has no width of its own, or it would be a layer that is missing here.
    assert not isinstance(Forecaster([GRU(d_model=2)], n_features=1, n_outputs=1), Layer)
    assert not isinstance(NLinear(target_inputs=(0,), horizon=1, look_back=2), Layer)


@every_layer
def test_it_has_what_the_forecaster_asks_for(name: str) -> None:
    layer = made(name)
    assert isinstance(layer, Layer)
    assert layer(inputs(layer, t=2))[0].shape == (3, 2, layer.width)


@pytest.mark.parametrize("start", ["zero", "random"])
@both_precisions
@every_layer
@torch.no_grad()
def test_full_chunked_and_step_by_step_passes_agree(
    name: str, dtype: torch.dtype, tolerance: float, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = made(name, dtype)
    # In so many calls the checks of shapes would take longer than the layers.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    x = inputs(layer, t=90 if start == "zero" else 74, dtype=dtype)
    state = layer.initial_state(3) if start == "zero" else random_state(layer)
    full = layer(x, state)
    if start == "zero":
        assert_close(layer(x), full, tolerance)
    # Chunks of 1 and 2 steps are shorter than what a convolution of four looks back.
    for length in (16, 37) if start == "zero" else (1, 2, 5, 16, 37):
        assert_close(chunked(layer, x, state, length), full, tolerance)
    assert_close(stepped(layer, x, state), full, tolerance)


@every_layer
def test_a_state_that_is_carried_on_carries_its_gradient(name: str) -> None:
    layer = made(name)
    x = inputs(layer).requires_grad_()
    start = map_state(lambda leaf: leaf.requires_grad_(), random_state(layer))
    exact = gradients(layer, loss_of(*layer(x, start)), x, *leaves(start))
    for length in (2, 37):
        assert_close(gradients(layer, loss_of(*chunked(layer, x, start, length)), x, *leaves(start)), exact)
    assert_close(gradients(layer, loss_of(*stepped(layer, x, start)), x, *leaves(start)), exact)


@every_layer
def test_a_state_follows_its_stream_when_the_batch_changes(name: str) -> None:
    layer = made(name)
    x, start = inputs(layer, b=5), random_state(layer, b=5)
    alone = [layer(x[i : i + 1], map_state(lambda leaf, i=i: leaf[i : i + 1], start)) for i in range(5)]
    state, rows, at = start, torch.arange(5), 0
    # Another order, then fewer, then one, then the same stream twice.
    for keep, steps in (([3, 0, 4, 2, 1], 20), ([4, 1, 0], 3), ([2], 21), ([0, 0], 30)):
        rows, state = rows[keep], map_state(lambda leaf, keep=keep: leaf[keep], state)
        y, state = layer(x[rows, at : at + steps], state)
        assert_close(y, torch.cat([alone[i][0][:, at : at + steps] for i in rows]))
        at += steps
    assert at == x.shape[1]
    assert_close(state, map_state(lambda *parts: torch.cat(parts), *[alone[i][1] for i in rows]))
    joined = map_state(
        lambda *parts: torch.cat(parts), *[map_state(lambda leaf, i=i: leaf[i : i + 1], start) for i in range(5)]
    )
    assert_close(layer(x, joined)[0], torch.cat([y for y, _ in alone]))


@every_layer
def test_the_batch_size_comes_from_the_input(name: str) -> None:
    layer = made(name)
    x = inputs(layer, b=5, t=9)
    y, state = layer(x)
    for rows in (slice(0, 1), slice(0, 5), slice(2, 4)):
        assert_close(layer(x[rows]), (y[rows], map_state(lambda leaf, rows=rows: leaf[rows], state)))
        assert_close(stepped(layer, x[rows], layer.initial_state(len(x[rows])))[0], y[rows])


@every_layer
def test_outputs_and_gradients_know_nothing_of_the_future(name: str) -> None:
    layer = made(name)
    x, state = inputs(layer), random_state(layer)
    for t in (0, 1, 15, 16, 40):
        changed = x.clone()
        changed[:, t + 1 :] = 1e6
        assert_close(layer(changed, state)[0][:, : t + 1], layer(x, state)[0][:, : t + 1], 1e-13)
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(layer(leaf, state)[0][:, t].sum(), leaf)
        assert float(gradient[:, t + 1 :].abs().max()) == 0
        assert float(gradient[:, t].abs().max()) > 0


@both_precisions
@every_layer
def test_the_last_output_alone_is_that_of_the_full_pass(name: str, dtype: torch.dtype, tolerance: float) -> None:
    layer = made(name, dtype)
    for t in (1, 2, 74):
        x = inputs(layer, t=t, dtype=dtype).requires_grad_()
        start = map_state(lambda leaf: leaf.requires_grad_(), random_state(layer))
        y, state = layer(x, start)
        last, last_state = layer(x, start, last_only=True)
        assert_close((last, last_state), (y[:, -1:], state), tolerance)
        wanted = [x, *leaves(start)]
        full, short = (gradients(layer, loss_of(part, end), *wanted) for part, end in ((y[:, -1:], state), (last, last_state)))
        assert_close(short, full, tolerance)


@both_precisions
@every_layer
def test_a_state_is_real_starts_from_zero_and_keeps_its_shape(name: str, dtype: torch.dtype, tolerance: float) -> None:
    layer = made(name, dtype)
    start = layer.initial_state(3)
    x = inputs(layer, t=4, dtype=dtype)
    for state in (start, layer(x)[1], layer(x, last_only=True)[1], layer.step(x[:, 0], start)[1]):
        assert_close(map_state(torch.zeros_like, state), map_state(torch.zeros_like, start), 0.0)
        assert type(state) is type(start)
        assert all(leaf.shape[0] == 3 and leaf.dtype == dtype and leaf.device == x.device for leaf in leaves(state))
        assert with_leaves(start, leaves(state)) is not None
    assert not any(bool(leaf.any()) for leaf in leaves(start))
    assert all(leaf.device.type == "meta" for leaf in leaves(layer.to("meta").initial_state(2)))


@every_layer
def test_a_call_changes_neither_its_input_nor_the_state_it_was_given(name: str) -> None:
    layer = made(name)
    x, state = inputs(layer), random_state(layer)
    before = copy.deepcopy((x, state))
    for call in (lambda: layer(x, state), lambda: layer(x, state, last_only=True), lambda: layer.step(x[:, 0], state)):
        first, _ = call(), map_state(lambda leaf: leaf.detach().normal_(), call()[1])
        assert_close((x, state), before, 0.0)
        assert_close(call(), first, 0.0)


@every_layer
def test_a_state_keeps_little_more_alive_than_itself(name: str) -> None:
    layer = made(name)
    x = inputs(layer, t=90)
    for state in (layer(x)[1], layer(x, last_only=True)[1], layer.step(x[:, 0], layer.initial_state(3))[1]):
        size = sum(leaf.numel() * leaf.element_size() for leaf in leaves(state))
        held = {leaf.untyped_storage().data_ptr(): leaf.untyped_storage().nbytes() for leaf in leaves(state)}
        assert sum(held.values()) <= 2 * size


@every_layer
def test_the_memory_layout_of_the_input_does_not_matter(name: str) -> None:
    layer = made(name)
    x, dy = inputs(layer), inputs(layer)
    exact = layer(x)
    exact_gradients = gradients(layer, (exact[0] * dy).sum())
    strided = torch.randn(74, 2 * layer.width, 3, dtype=x.dtype).permute(2, 0, 1)[..., ::2].copy_(x)
    for view, weight in ((strided, dy), (x, strided.clone().copy_(dy)), (x, dy.transpose(0, 1).contiguous().transpose(0, 1))):
        found = layer(view)
        assert_close(found, exact)
        assert_close(gradients(layer, (found[0] * weight).sum()), exact_gradients)
    # One number for all: a gradient without strides.
    assert_close(gradients(layer, layer(x)[0].sum()), gradients(layer, (layer(x)[0] * torch.ones_like(dy)).sum()))


@every_layer
def test_it_names_parameters_that_exist_and_all_of_them_train(name: str) -> None:
    layer = made(name)
    parameters = dict(layer.named_parameters())
    contract = layer.health_contract()
    named = [*contract["trainable"], *contract["constants"]]
    buffers = dict(layer.named_buffers())
    assert set(contract) == {"trainable", "constants", "causal", "no_weight_decay"}
    assert contract["causal"] == ("",)
    assert len(named) == len(set(named))
    assert set(parameters) <= set(named) <= set(parameters) | set(buffers)
    own = {id(parameter) for parameter in parameters.values()}
    exempt = [id(parameter) for parameter in layer.no_weight_decay()]
    assert set(exempt) <= own
    assert len(exempt) == len(set(exempt))
    assert {id(parameters[key]) for key in contract["no_weight_decay"]} == set(exempt)
    for last_only in (False, True):
        layer.zero_grad()
        y, _ = layer(inputs(layer), last_only=last_only)
        y.square().sum().backward()
        idle = [key for key in contract["trainable"] if parameters[key].grad is None or not bool(parameters[key].grad.any())]
        assert idle == []


@every_layer
def test_a_copy_and_what_is_loaded_from_a_state_dict_are_the_same_layer(name: str) -> None:
    layer = made(name)
    x = inputs(layer)
    exact = layer(x)
    twin = copy.deepcopy(layer)
    torch.manual_seed(5)
    fresh: Any = LAYERS[name]().double()  # type: ignore[attr-defined]
    fresh.load_state_dict(layer.state_dict())
    names = {id(parameter): key for key, parameter in layer.named_parameters()}
    for other in (twin, fresh):
        assert_close(other(x), exact, 0.0)
        theirs = {id(parameter): key for key, parameter in other.named_parameters()}
        assert [theirs[id(p)] for p in other.no_weight_decay()] == [names[id(p)] for p in layer.no_weight_decay()]
        other(x)[0].sum().backward()
    assert all(parameter.grad is None for parameter in layer.parameters())
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.1)
    assert_close(layer(x), exact, 0.0)


@every_layer
def test_nothing_in_it_is_complex(name: str) -> None:
    layer = made(name)
    assert not any(tensor.is_complex() for tensor in (*layer.parameters(), *layer.buffers(), *leaves(layer.initial_state(1))))


@every_layer
def test_mixed_precision_is_close_and_leaves_the_state_wide(name: str) -> None:
    layer = made(name, torch.float32)
    x, start = inputs(layer, dtype=torch.float32).bfloat16(), random_state(layer)
    exact = layer(x.float(), start)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        full, steps = layer(x, start), stepped(layer, x, start)
        loss = full[0].float().square().mean()
    for y, state in (full, steps):
        assert all(leaf.dtype == torch.float32 for leaf in leaves(state))
        assert bool(y.isfinite().all())
        assert_close((y.float(), state), exact, 0.05)
    loss.backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())
    assert all(bool(parameter.grad.isfinite().all()) for parameter in layer.parameters())


class _Kept(TorchDispatchMode):
    """Counts what the operations under it have made and somebody still holds, autograd included."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in known}
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known:
                    self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return result

    def bytes(self) -> int:
        return sum(size for reference, size in self.made.values() if not reference.expired())


@every_layer
def test_a_checkpointed_block_of_it_keeps_what_goes_in_and_nothing_else(name: str) -> None:
    t, kept, found = 200, {}, []
    for checkpointed in (False, True):
        layers = [made(name) for _ in range(2)]
        model = Forecaster(layers, n_features=1, n_outputs=1, checkpoint_blocks=checkpointed).double()
        torch.manual_seed(2)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.3)
        x = torch.randn(2, t, 1, dtype=torch.float64)
        with _Kept(x, *model.parameters()) as memory:
            y = model(x)[0]
            kept[checkpointed] = memory.bytes()
        found.append([y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    streams = 3 * 2 * t * layers[0].width * 8  # bytes: into two blocks, and out of the last
    states = 3 * sum(leaf.untyped_storage().nbytes() for layer in layers for leaf in leaves(layer.initial_state(2)))
    assert kept[True] <= streams + states + y.untyped_storage().nbytes() + 1000
    assert kept[False] > 3 * kept[True]
