"""Every trainable parameter is in exactly one group."""

import copy
import io
import math

import lightning as L
import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils.data import DataLoader

from statewise.models.dense_ssm import dense_ssm
from statewise.optim import (
    adam,
    adamw,
    describe_groups,
    fused_allowed,
    marked_parameters,
    parameter_groups,
)

# Of Lightning 2.6 itself: its use of torch's trees, and its advice on workers.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]


class Layer(nn.Module):
    """A layer that tells which of its parameters decay would harm."""

    def __init__(self) -> None:
        super().__init__()
        self.A, self.B = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3, 4))
        self.delta, self.D = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))

    def no_weight_decay(self) -> list[nn.Parameter]:
        return [self.A, self.delta, self.D]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_proj = nn.Linear(2, 4)
        self.norm_0 = nn.LayerNorm(4)
        self.ssm_0 = Layer()
        self.gru = nn.GRU(4, 4)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.output_proj = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.output_proj.weight


def by_name(groups):
    return {name: group["name"] for group in groups for name in group["param_names"]}


def test_groups_cover_every_trainable_parameter_exactly_once():
    model = Model()
    groups = parameter_groups(model, 0.1)
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert {group["name"]: group["weight_decay"] for group in groups} == {"decay": 0.1, "no_decay": 0.0}
    for group in groups:
        named = dict(model.named_parameters())
        assert all(named[name] is p for name, p in zip(group["param_names"], group["params"], strict=True))


def test_layers_biases_and_norms_get_no_decay():
    names = by_name(parameter_groups(Model()))
    decayed = {name for name, group in names.items() if group == "decay"}
    assert decayed == {
        "input_proj.weight",
        "ssm_0.B",
        "gru.weight_ih_l0",
        "gru.weight_hh_l0",
        "output_proj.weight",
    }
    assert names["gru.bias_ih_l0"] == names["norm_0.weight"] == names["ssm_0.delta"] == "no_decay"


def test_a_mark_of_another_library_is_honoured_wherever_it_comes_from_and_printed():
    model = Model()
    model.gru.weight_hh_l0._no_weight_decay = True
    model.tied.weight._no_weight_decay = True  # found under either of its names
    groups = parameter_groups(model)
    assert by_name(groups)["gru.weight_hh_l0"] == by_name(groups)["output_proj.weight"] == "no_decay"
    assert "  marked _no_weight_decay: gru.weight_hh_l0" in describe_groups(adamw(groups))
    marks = marked_parameters(model)
    model.gru.weight_ih_l0._no_weight_decay = False
    copied = copy.deepcopy(model)
    assert by_name(parameter_groups(copied))["gru.weight_hh_l0"] == "decay"  # torch drops the attribute
    assert by_name(parameter_groups(copied, exempt=marks)) == by_name(groups)


def test_what_a_layer_tells_survives_a_copy():
    model = Model()
    assert by_name(parameter_groups(copy.deepcopy(model))) == by_name(parameter_groups(model))


def test_a_module_may_tell_names_instead_of_parameters():
    class ByName(nn.Linear):
        def no_weight_decay(self):
            return {"weight"}

    class Wrong(nn.Linear):
        def no_weight_decay(self):
            return {"wieght"}

    assert by_name(parameter_groups(nn.Sequential(ByName(2, 2)))) == {"0.weight": "no_decay", "0.bias": "no_decay"}
    with pytest.raises(ValueError, match=r"Wrong.no_weight_decay\(\) names 'wieght', which is no parameter of it"):
        parameter_groups(Wrong(2, 2))
    with pytest.raises(ValueError, match="exempt names 'x', which is no parameter of the Linear"):
        parameter_groups(nn.Linear(2, 2), exempt=["x"])


def test_a_model_with_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="no parameter of the model is trainable"):
        parameter_groups(nn.Linear(2, 2).requires_grad_(False))


@pytest.mark.parametrize("discretization", ["direct", "zoh"])
def test_the_dense_model_exempts_its_dynamics_and_nothing_else_of_its_matrices(discretization):
    model = dense_ssm(
        n_features=3, n_outputs=2, target_inputs=(0, 1), targets_are_levels=True, horizon=1, d_model=4, d_state=4,
        skip=True, discretization=discretization,
    )  # fmt: skip
    names = by_name(parameter_groups(copy.deepcopy(model)))
    assert names.keys() == {name for name, _ in model.named_parameters()}
    exempt = {name.rpartition(".")[2] for name, group in names.items() if group == "no_decay" and name.startswith("ssm_")}
    assert exempt == {"A", "delta", "D"}
    assert {names[name] for name in ("input_proj.weight", "ssm_0.B", "ssm_1.C", "output_proj.weight")} == {"decay"}


@pytest.mark.parametrize("fused", [None, False], ids=["fused", "foreach"])
@pytest.mark.parametrize("copied", [False, True], ids=["model", "deep copy"])
def test_decay_leaves_the_dynamics_alone_to_the_bit_and_shrinks_projections(fused, copied):
    torch.manual_seed(0)
    model = copy.deepcopy(Model()) if copied else Model()
    optimizer = adamw(parameter_groups(model), lr=1e-2, weight_decay=0.5, fused=fused)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for step in range(50):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        if step == 24:  # a checkpoint in the middle, read back the safe way into a fresh optimiser
            stored = io.BytesIO()
            torch.save(optimizer.state_dict(), stored)
            stored.seek(0)
            optimizer = adamw(parameter_groups(model), lr=1e-2, weight_decay=0.5, fused=fused)
            optimizer.load_state_dict(torch.load(stored, weights_only=True))
    after = dict(model.named_parameters())
    for name in ("ssm_0.A", "ssm_0.delta", "ssm_0.D", "norm_0.weight", "input_proj.bias"):
        assert torch.equal(after[name], before[name]), name
    for name in ("input_proj.weight", "output_proj.weight", "ssm_0.B"):
        torch.testing.assert_close(after[name].detach(), before[name] * (1 - 0.5e-2) ** 50)
    described = describe_groups(optimizer)
    assert "no_decay: 10 parameters" in described
    assert "weight decay 0.5" in described
    assert "  told by Layer: ssm_0.A" in described


def test_fused_is_the_default_and_foreach_the_other_form_with_equal_results():
    results = []
    for fused in (None, True, False):
        torch.manual_seed(0)
        model = nn.Linear(3, 3, dtype=torch.float64)
        optimizer = adam(parameter_groups(model), lr=1e-2, fused=fused)
        assert optimizer.defaults["fused"] is (None if fused is False else True)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 3, dtype=torch.float64)).square().sum().backward()
            optimizer.step()
        results.append(model.weight.detach())
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    torch.testing.assert_close(results[0], results[2], rtol=1e-12, atol=1e-14)


def test_complex_parameters_take_the_foreach_form_by_default():
    module = nn.ParameterList([nn.Parameter(torch.ones(2, dtype=torch.complex64))])
    assert adam(parameter_groups(module)).defaults["foreach"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": -1.0}, "optimizer.lr must be a number of at least 0, got -1.0"),
        ({"lr": math.nan}, "optimizer.lr must be a number of at least 0, got nan"),
        ({"eps": -1e-8}, "optimizer.eps must be"),
        ({"weight_decay": -0.1}, "optimizer.weight_decay must be"),
        ({"betas": [0.9, 1.0]}, "optimizer.betas must be two numbers from 0 to below 1"),
        ({"betas": [0.9]}, "optimizer.betas must be two numbers"),
    ],
)
@pytest.mark.parametrize("optimizer", [adam, adamw])
def test_arguments_out_of_range_are_refused_with_their_key(optimizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        optimizer(parameter_groups(nn.Linear(2, 2)), **arguments)


def test_a_learning_rate_of_zero_is_left_to_training_health():
    assert adamw(parameter_groups(nn.Linear(2, 2)), lr=0.0).param_groups[0]["lr"] == 0.0


class Plain(L.LightningModule):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.layer, self.fused = nn.Linear(2, 1), fused

    def training_step(self, batch):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return adamw(parameter_groups(self), fused=self.fused)


@pytest.mark.parametrize(
    ("precision", "clip", "allowed"),
    [("bf16-mixed", 1.0, False), ("bf16-mixed", None, True), ("32-true", 1.0, True), ("64-true", 1.0, True)],
)
def test_fused_is_allowed_exactly_where_lightning_takes_it(precision, clip, allowed):
    def fit(fused: bool) -> None:
        trainer = L.Trainer(
            accelerator="cpu",
            max_steps=1,
            log_every_n_steps=1,
            precision=precision,
            gradient_clip_val=clip,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Plain(fused), DataLoader(torch.randn(2, 2), batch_size=2))

    assert fused_allowed(precision, clip) is allowed
    fit(fused=False)
    if allowed:
        fit(fused=True)
    else:
        with pytest.raises((MisconfigurationException, RuntimeError), match="does not allow for gradient clipping"):
            fit(fused=True)


def test_sixteen_bit_mixed_precision_is_treated_like_the_other_mixed_ones():
    assert not fused_allowed("16-mixed", 0.5)
    assert fused_allowed("16-mixed", 0.0)
