"""Every model streams: step by step from a carried state it predicts what it would from the whole window so far."""

import gc
import importlib
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor

from statewise.models.state import leaves, map_state
from statewise.schemas import CONSTRUCTORS

DATA = {"n_features": 3, "n_outputs": 4, "target_inputs": (2, 0), "targets_are_levels": True, "horizon": 2}
# Small, and with all that a forecaster remembers. A model of conf/model that is missing here fails the first test.
MAMBA = {"d_model": 8, "headdim": 4, "d_state": 4, "dt_min": 0.05, "dt_max": 1.0, "chunk_size": 16}
MODELS: dict[str, list[dict[str, Any]]] = {
    "dense_ssm": [
        {"d_model": 4, "d_state": 4, "linear_skip": 4},
        {"d_model": 4, "d_state": 4, "discretization": "zoh", "skip": True, "norm": "rms", "anchor": "none"},
    ],
    "diagonal_ssm": [
        {"d_model": 4, "d_state": 4, "linear_skip": 4, "step_min": 0.05, "step_max": 1.0},
        {"d_model": 4, "d_state": 4, "discretization": "bilinear", "init": "ring", "skip": False, "norm": "rms"},
    ],
    "gru": [{"d_model": 6, "linear_skip": 2}],
    "mamba2": [{**MAMBA, "linear_skip": 3}, {**MAMBA, "n_groups": 2, "d_conv": 2, "checkpoint_blocks": True}],
    "nlinear": [{"look_back": 7}, {"look_back": 5, "individual": True, "anchor": "none"}],
}
CASES = [pytest.param(name, options, id=f"{name}-{i}") for name, many in MODELS.items() for i, options in enumerate(many)]
every_model = pytest.mark.parametrize(("name", "options"), CASES)
one_of_each = pytest.mark.parametrize(
    ("name", "options"), [pytest.param(name, many[0], id=name) for name, many in MODELS.items()]
)


@pytest.fixture
def _shapes_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """In so many calls the checks of shapes would take longer than the models."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def built(name: str, options: dict, dtype: torch.dtype = torch.float64) -> Any:
    """A model whose every parameter takes part: weights that start from zero would hide what they weigh."""
    torch.manual_seed(0)
    module, _, factory = CONSTRUCTORS[f"model/{name}"].rpartition(".")
    model = getattr(importlib.import_module(module), factory)(**DATA, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if not bool(parameter.any()):
                parameter.normal_(std=0.3)
    return model.to(dtype)


def bars(t: int, b: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    """A random walk."""
    return torch.randn(b, t, 3, dtype=dtype).cumsum(1) / 3


def error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).abs().max() / exact.abs().max())


def sizes(state: Any) -> list[tuple[tuple[int, ...], int]]:
    """Of every tensor of a state its shape, and the bytes that it keeps alive."""
    return [(tuple(leaf.shape), leaf.untyped_storage().nbytes()) for leaf in leaves(state)]


def test_every_model_of_the_configuration_is_in_the_table() -> None:
    assert {f"model/{name}" for name in MODELS} == {path for path in CONSTRUCTORS if path.startswith("model/")}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["f64", "f32"])
@every_model
@pytest.mark.usefixtures("_shapes_unchecked")
@torch.no_grad()
def test_after_every_new_bar_a_step_predicts_what_the_window_so_far_gives(
    name: str, options: dict, dtype: torch.dtype, tolerance: float
) -> None:
    model, x = built(name, options, dtype), bars(36, dtype=dtype)
    windows = torch.stack([model(x[:, : t + 1], last_only=True)[0][:, 0] for t in range(36)], dim=1)
    assert error(model(x)[0], windows) <= tolerance
    # From the first bar, and from the state that the first few left in one call.
    for start in (0, 1, 9):
        state = model(x[:, :start])[1] if start else model.initial_state(2)
        for t in range(start, 36):
            y, state = model.step(x[:, t], state)
            assert y.shape == (2, 4)
            assert error(y, windows[:, t]) <= tolerance


@every_model
@torch.no_grad()
def test_a_stream_can_join_and_leave_between_two_bars(name: str, options: dict) -> None:
    model, x = built(name, options), bars(20, b=3)
    alone = torch.cat([model(x[i : i + 1])[0] for i in range(3)])
    state = model.initial_state(3)
    for t in range(10):
        state = model.step(x[:, t], state)[1]
    state = map_state(lambda leaf: leaf[[2, 0]], state)
    for t in range(10, 20):
        y, state = model.step(x[[2, 0], t], state)
        assert error(y, alone[[2, 0], t]) <= 1e-10


@every_model
@torch.no_grad()
def test_a_state_keeps_little_more_alive_than_itself(name: str, options: dict) -> None:
    model = built(name, options)
    fresh = sizes(model.initial_state(2))
    x = bars(200)
    for state in (model(x)[1], model(x, last_only=True)[1], model.step(x[:, 0], model.initial_state(2))[1]):
        assert [shape for shape, _ in sizes(state)] == [shape for shape, _ in fresh]
        # Step by step a history may be what it was with one bar more.
        assert all(held <= own * 2 for (_, held), (_, own) in zip(sizes(state), fresh, strict=True))


def stream(model: Any, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    for t in range(x.shape[1]):  # no list of all steps, which would be what grows
        y, state = model.step(x[:, t], state)
    return y, state


def tensors_alive() -> int:
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


@one_of_each
@pytest.mark.usefixtures("_shapes_unchecked")
@torch.inference_mode()
def test_what_is_remembered_does_not_grow_from_step_to_step(name: str, options: dict) -> None:
    model = built(name, options)
    x = bars(160, b=1)
    state = stream(model, x[:, :40], model.initial_state(1))[1]
    before, alive = sizes(state), tensors_alive()
    state = stream(model, x[:, 40:], state)[1]
    assert sizes(state) == before
    assert tensors_alive() <= alive


def resident() -> int:
    """Bytes of memory that this process occupies."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a process from /proc")
@one_of_each
@pytest.mark.usefixtures("_shapes_unchecked")
@torch.inference_mode()
def test_memory_is_constant_over_100_000_steps_and_the_prediction_does_not_drift(name: str, options: dict) -> None:
    model = built(name, options if name == "nlinear" else {**options, "n_layers": 1})
    x = torch.randn(1, 100_000, 3, dtype=torch.float64)
    state = stream(model, x[:, :2_000], model.initial_state(1))[1]
    before, memory = sizes(state), resident()
    y, state = stream(model, x[:, 2_000:], state)
    grown = resident() - memory
    assert sizes(state) == before
    assert grown < 4 * 2**20  # 42 bytes a step
    exact = None
    for chunk in x.split(10_000, 1):
        y_chunk, exact = model(chunk, exact, last_only=True)
    assert error(y, y_chunk[:, 0]) <= 1e-9
