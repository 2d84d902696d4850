"""The forecaster: the original to the letter, every combination of options, and one result for every way to run it."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.models.dense_ssm import DenseSSM, dense_ssm
from statewise.models.forecaster import Forecaster, ForecasterState, Layer, resolve_anchor

ORIGIN = {"residual": False, "activation": "none", "glu": False, "anchor": "none", "init": "uniform"}


def forecaster(seed: int = 0, **options: Any) -> Forecaster:
    """A small model in float64: 3 features, targets in columns 2 and 0, horizon 2."""
    torch.manual_seed(seed)
    given = {"n_features": 3, "n_outputs": 4, "target_inputs": (2, 0), "targets_are_levels": True, "horizon": 2}
    given |= {"d_model": 4, "d_state": 4}
    return dense_ssm(**(given | options)).double()


def inputs(b: int = 2, t: int = 8) -> Tensor:
    return torch.randn(b, t, 3, dtype=torch.float64)


def test_with_the_origins_settings_the_forward_pass_is_the_origins() -> None:
    model, x = forecaster(**ORIGIN), inputs(t=20)
    p = dict(model.named_parameters())
    stream = x @ p["input_proj.weight"].T + p["input_proj.bias"]
    for i in range(2):
        u = F.layer_norm(stream, (8,), p[f"norm_{i}.weight"], p[f"norm_{i}.bias"])
        u = u @ (p[f"ssm_{i}.delta"].mean() * p[f"ssm_{i}.B"]).T
        h, y = torch.zeros(2, 4, dtype=torch.float64), []
        for t in range(20):
            h = h @ p[f"ssm_{i}.A"].T + u[:, t]
            y.append(h @ p[f"ssm_{i}.C"].T)
        stream = torch.stack(y, 1)
    expected = stream @ p["output_proj.weight"].T + p["output_proj.bias"]
    torch.testing.assert_close(model(x)[0], expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model(x, last_only=True)[0], expected[:, -1:], rtol=1e-10, atol=1e-12)


def test_with_the_defaults_the_forward_pass_is_the_one_described() -> None:
    model, x = forecaster(skip=True, linear_skip=3), inputs(t=10)
    torch.nn.init.normal_(model.skip_proj.weight)
    m = dict(model.named_modules())
    stream = m["input_proj"](x)
    for i in range(2):
        y, _ = m[f"ssm_{i}"](m[f"norm_{i}"](stream))
        stream = stream + F.glu(m[f"glu_{i}"](F.gelu(y)), dim=-1)
    padded = F.pad(x, (0, 0, 2, 0))
    past = torch.stack([padded[:, t : t + 3].transpose(1, 2).flatten(1) for t in range(10)], 1)
    expected = m["output_proj"](stream) + past @ model.skip_proj.weight.T + x[..., [2, 0, 2, 0]]
    torch.testing.assert_close(model(x)[0], expected)


def test_parameter_names_are_the_exchange_format() -> None:
    per_layer = ["norm_{}.weight", "norm_{}.bias", "ssm_{}.A", "ssm_{}.B", "ssm_{}.C", "ssm_{}.delta"]
    per_layer += ["glu_{}.weight", "glu_{}.bias"]
    names = {"input_proj.weight", "input_proj.bias", "output_proj.weight", "output_proj.bias"}
    names |= {name.format(i) for name in per_layer for i in range(3)}
    model = forecaster(n_layers=3)
    assert {name for name, _ in model.named_parameters()} == names
    assert set(model.state_dict()) == names
    assert all(isinstance(layer, Layer) for layer in model.layers)
    assert [id(layer) for layer in model.layers] == [id(model.ssm_0), id(model.ssm_1), id(model.ssm_2)]


OPTIONS = {
    "discretization": ("direct", "zoh"),
    "norm": ("layer", "rms", "none"),
    "residual": (True, False),
    "skip": (False, True),
    "activation": ("gelu", "none"),
    "glu": (True, False),
    "linear_skip": (0, 2),
    "anchor": ("auto", "none"),
}


@pytest.mark.parametrize("options", list(itertools.product(*OPTIONS.values())), ids=lambda v: "-".join(map(str, v)))
def test_every_parameter_of_every_combination_trains(options: tuple) -> None:
    model = forecaster(**dict(zip(OPTIONS, options, strict=True)))
    y, _ = model(inputs(), last_only=True)
    (y - 1).square().mean().backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.norm() > 1e-12]
    assert idle == []


@pytest.mark.parametrize("activation", ["gelu", "silu", "relu", "tanh", "none"])
@pytest.mark.parametrize("init", ["uniform", "rotation"])
def test_every_parameter_trains_from_every_start(activation: str, init: str) -> None:
    model = forecaster(activation=activation, init=init, dropout=0.2)
    for last_only in (False, True):
        model.zero_grad()
        model(inputs(), last_only=last_only)[0].square().mean().backward()
        assert all(p.grad is not None and p.grad.norm() > 1e-12 for p in model.parameters())


def test_the_rms_norm_divides_by_the_root_of_the_mean_square_and_has_no_bias() -> None:
    model, x = forecaster(norm="rms", n_layers=1), inputs(t=10)
    torch.nn.init.uniform_(model.norm_0.weight, 0.5, 2.0)
    stream = model.input_proj(x)
    normed = stream / (stream.square().mean(-1, keepdim=True) + 1e-5).sqrt() * model.norm_0.weight
    y = stream + F.glu(model.glu_0(F.gelu(model.ssm_0(normed)[0])), dim=-1)
    torch.testing.assert_close(model(x)[0], model.output_proj(y) + x[..., [2, 0, 2, 0]])
    assert "norm_0.bias" not in model.state_dict()


SHAPES = [
    {},
    {"skip": True, "linear_skip": 4, "discretization": "zoh"},
    {"linear_skip": 1, "norm": "rms"},
    {**ORIGIN, "norm": "none", "n_layers": 1},
    {"residual": False, "activation": "tanh", "anchor": "none", "linear_skip": 30},
]


@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_full_chunked_and_step_by_step_passes_agree(options: dict) -> None:
    model, x = forecaster(**options), inputs(b=3, t=41)
    if model.linear_skip:
        torch.nn.init.normal_(model.skip_proj.weight)
    y, end = model(x)
    last, last_end = model(x, last_only=True)
    torch.testing.assert_close(last, y[:, -1:], rtol=1e-10, atol=1e-10)
    for cuts in ([1, 40], [17, 17, 7], [1] * 41):
        state, parts = model.initial_state(3), []
        for chunk in x.split(cuts, 1):
            part, state = model(chunk, state)
            parts.append(part)
        torch.testing.assert_close(torch.cat(parts, 1), y, rtol=1e-10, atol=1e-10)
    stepped, parts = model.initial_state(3), []
    for x_t in x.unbind(1):
        y_t, stepped = model.step(x_t, stepped)
        parts.append(y_t)
    torch.testing.assert_close(torch.stack(parts, 1), y, rtol=1e-10, atol=1e-10)
    for other in (state, stepped, last_end):
        torch.testing.assert_close(torch.cat(other.layers), torch.cat(end.layers), rtol=1e-10, atol=1e-10)
        assert torch.equal(other.inputs, end.inputs)


def test_predictions_depend_on_no_later_input() -> None:
    model, x = forecaster(linear_skip=3), inputs(t=20)
    torch.nn.init.normal_(model.skip_proj.weight)
    changed = x.clone()
    changed[:, 12:] += 1
    y, other = model(x)[0], model(changed)[0]
    torch.testing.assert_close(y[:, :12], other[:, :12], rtol=0, atol=1e-13)
    assert bool((y[:, 12] - other[:, 12]).abs().max() > 1e-3)


def test_samples_of_a_batch_do_not_mix_and_any_batch_size_works() -> None:
    model, x = forecaster(), inputs(b=5)
    whole = model(x)[0]
    alone = torch.cat([model(sample)[0] for sample in x.split([1, 2, 2])])
    torch.testing.assert_close(alone, whole, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_everything_has_the_dtype_of_the_model(options: dict, dtype: torch.dtype) -> None:
    model, x = forecaster(**options).to(dtype), inputs().to(dtype)
    y, state = model(x)
    y.sum().backward()
    tensors = [y, *state.layers, state.inputs, *model.initial_state(1).layers, *(p.grad for p in model.parameters())]
    assert {tensor.dtype for tensor in tensors} == {dtype}


@pytest.mark.parametrize("options", [{}, {"norm": "rms"}, {"checkpoint_blocks": True}], ids=str)
def test_a_model_trains_under_mixed_precision(options: dict) -> None:
    model, x = forecaster(**options).float(), inputs().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = model(x)
        y.float().square().mean().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_the_last_layer_reads_out_the_last_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    forward = DenseSSM.forward

    def spy(self: DenseSSM, x: Tensor, state: Tensor | None = None, *, last_only: bool = False) -> tuple[Tensor, Tensor]:
        y, state = forward(self, x, state, last_only=last_only)
        seen.append(tuple(y.shape))
        return y, state

    monkeypatch.setattr(DenseSSM, "forward", spy)
    model = forecaster(n_layers=3)
    y, _ = model(inputs(t=9), last_only=True)
    assert seen == [(2, 9, 8), (2, 9, 8), (2, 1, 8)]
    assert y.shape == (2, 1, 4)


def test_an_anchored_model_starts_near_the_last_value_of_each_target() -> None:
    model, x = forecaster(d_model=16), inputs(b=50)
    change = model(x)[0].view(50, 8, 2, 2) - x[..., [2, 0]][:, :, None]
    assert 0 < float(change.detach().square().mean().sqrt()) < 0.3
    free = forecaster(d_model=16, anchor="none")
    assert free.anchor_inputs is None
    torch.nn.init.zeros_(free.output_proj.weight)
    assert torch.equal(free(x)[0], free.output_proj.bias.expand(50, 8, 4))


def test_the_anchor_follows_the_data() -> None:
    assert resolve_anchor("auto", (1, 0), True) == (1, 0)
    assert resolve_anchor("last", (1, 0), True) == (1, 0)
    assert resolve_anchor("none", (1, 0), True) is None
    assert resolve_anchor("auto", (1, 0), False) is None
    assert resolve_anchor("auto", None, True) is None
    with pytest.raises(ValueError, match=r"model.anchor=last is impossible here, the targets are changes"):
        resolve_anchor("last", (1, 0), False)
    with pytest.raises(ValueError, match=r"model.anchor=last is impossible here, not every target is an input"):
        resolve_anchor("last", None, True)


def test_dropout_acts_in_training_only() -> None:
    model, x = forecaster(dropout=0.5), inputs()
    assert not torch.equal(model(x)[0], model(x)[0])
    model.eval()
    assert torch.equal(model(x)[0], model(x)[0])


CHECKPOINTED = [
    {},
    {"dropout": 0.5, "norm": "rms"},
    {"dropout": 0.3, "discretization": "zoh", "skip": True, "linear_skip": 3, "n_layers": 3},
    {**ORIGIN, "dropout": 0.2},
]


@pytest.mark.parametrize("last_only", [False, True], ids=["all", "last"])
@pytest.mark.parametrize("options", CHECKPOINTED, ids=str)
def test_checkpointed_blocks_give_the_same_outputs_and_gradients_to_the_bit(options: dict, last_only: bool) -> None:
    results = []
    for checkpointed in (False, True):
        model, x = forecaster(**options, checkpoint_blocks=checkpointed), inputs(t=13)
        start = ForecasterState(
            tuple(torch.randn(2, 4, dtype=torch.float64, requires_grad=True) for _ in model.layers),
            torch.randn(2, max(model.linear_skip - 1, 0), 3, dtype=torch.float64),
        )
        torch.manual_seed(1)
        # Two chunks: the state between them carries its gradient through the blocks of the first.
        _, middle = model(x[:, :6], start, last_only=last_only)
        y, end = model(x[:, 6:], middle, last_only=last_only)
        loss = y.square().sum() + sum(state.sum() for state in end.layers)
        noise = torch.rand(3)  # the blocks drew as many random numbers
        grads = torch.autograd.grad(loss, [*model.parameters(), *start.layers])
        results.append([y, *end.layers, noise, *grads])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_checkpointing_recomputes_only_in_training_and_only_for_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    forward = DenseSSM.forward
    monkeypatch.setattr(DenseSSM, "forward", lambda self, *args, **kwargs: calls.append(0) or forward(self, *args, **kwargs))
    model, x = forecaster(checkpoint_blocks=True), inputs()
    for prepare, expected in ((model.train, 4), (model.eval, 2)):
        prepare()
        calls.clear()
        model(x)[0].sum().backward()
        assert len(calls) == expected
    model.train()
    calls.clear()
    with torch.no_grad():
        model(x)
    assert len(calls) == 2


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3, "norm": "rms"}], ids=str)
def test_of_a_checkpointed_block_only_what_goes_in_is_kept_for_the_backward_pass(options: dict) -> None:
    kept = {}
    for checkpointed in (False, True):
        model, x = forecaster(**options, n_layers=4, checkpoint_blocks=checkpointed), inputs(b=2, t=500)
        saved: dict[int, int] = {}

        def note(tensor: Tensor, saved: dict[int, int] = saved) -> Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            y, _ = model(x)
        parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
        kept[checkpointed] = sum(size for place, size in saved.items() if place not in parameters)
        y.sum().backward()
    stream, states = 2 * 500 * 8 * 8, 4 * 2 * 4 * 8  # bytes
    # What goes into the four blocks, and into the two projections around them.
    assert kept[True] <= 5 * stream + states + 2 * 500 * 3 * 8
    assert kept[False] > 4 * kept[True]


def test_checkpointing_changes_no_digit_of_a_run_and_its_training_is_healthy(train: Any) -> None:
    runs = [
        train("model.n_layers=2", "model.dropout=0.2", "model.norm=rms", f"model.checkpoint_blocks={value}", "health=strict")
        for value in ("false", "true")
    ]
    assert [run.code for run in runs] == [0, 0]
    assert runs[1].summary["health"] == {"verdict": "healthy", "findings": []}
    plain, checkpointed = ((run.folder / "metrics.csv").read_text() for run in runs)
    assert checkpointed == plain
    assert runs[1].summary["test"] == runs[0].summary["test"]


def test_exemptions_from_decay_are_collected_from_the_layers() -> None:
    model = forecaster(skip=True)
    names = {id(p): name for name, p in model.named_parameters()}
    exempt = {names[id(p)] for p in model.no_weight_decay()}
    assert exempt == {f"ssm_{i}.{name}" for i in range(2) for name in ("A", "delta", "D")}


def test_the_loss_of_one_batch_falls_and_A_moves_with_it() -> None:
    model, x = forecaster(init="uniform", anchor="none"), inputs(b=8)
    target = torch.randn(8, 1, 4, dtype=torch.float64)
    before = [layer.discrete_transition() for layer in model.layers]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x, last_only=True)[0], target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    for layer, A_bar in zip(model.layers, before, strict=True):
        assert float((layer.discrete_transition() - A_bar).abs().mean()) > 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_features": 0}, "n_features must be at least 1, got 0"),
        ({"horizon": 0}, "data.horizon must be at least 1, got 0"),
        ({"n_outputs": 5}, "n_outputs must be horizon * n_targets, got 5 outputs at data.horizon=2"),
        ({"n_outputs": 2}, "n_outputs must be horizon * n_targets, got 2 outputs at data.horizon=2 and 2 anchored targets"),
        ({"target_inputs": (0, 3)}, "the anchored input columns must lie in 0..2, got [0, 3]"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_refused_in_one_line(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is compared below
        forecaster(**arguments)
    assert str(caught.value) == message


def test_layers_of_different_widths_or_none_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match=r"all layers must have one width, got \[4, 8\]"):
        Forecaster([DenseSSM(d_model=2), DenseSSM(d_model=4)], n_features=1, n_outputs=1)
    with pytest.raises(ValueError, match="at least one layer"):
        Forecaster([], n_features=1, n_outputs=1)
