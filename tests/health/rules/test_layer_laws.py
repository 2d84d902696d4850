"""Initial values that are gone, and states that are numerically dead, in a real fit."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from statewise.models.dense_ssm import DenseSSM
from statewise.models.diagonal_ssm import DiagonalSSM
from statewise.models.forecaster import Forecaster
from statewise.models.mamba2 import Mamba2

LAYERS = {
    "dense": lambda: DenseSSM(d_model=4, expand=2, d_state=4),
    "diagonal": lambda: DiagonalSSM(d_model=8, d_state=4),
    "mamba2": lambda: Mamba2(d_model=8, headdim=8, d_state=4),
}


def forecaster(name: str) -> Forecaster:
    torch.manual_seed(0)
    return Forecaster([LAYERS[name](), LAYERS[name]()], n_features=3, n_outputs=1)


@pytest.mark.parametrize("name", LAYERS)
def test_a_generic_initialisation_over_a_layer_is_named_before_the_first_update(
    name: str, regression: Any, findings: Any
) -> None:
    module = regression(forecaster(name))
    assert findings(module, steps=2) == []
    module = regression(forecaster(name))
    for parameter in module.net.ssm_1.parameters():
        nn.init.normal_(parameter, std=0.02)
    (found,) = findings(module, steps=2)
    assert (found["id"], found["severity"], found["step"]) == ("lost-initialisation", "warning", 0)
    rates = {"dense": {"A", "delta"}, "diagonal": {"log_A_real", "A_imag", "log_step"}, "mamba2": {"A_log", "dt_bias"}}
    assert set(found["parameters"]) <= {f"net.ssm_1.{name}" for name in rates[name]}
    assert found["parameters"]


def test_a_second_fit_and_loaded_weights_are_left_in_peace(regression: Any, findings: Any) -> None:
    module = regression(forecaster("diagonal"), lr=0.1)
    assert findings(module, steps=3) == []
    assert findings(module, steps=3) == []
    other = regression(forecaster("diagonal"))
    other.load_state_dict(module.state_dict())
    assert findings(other, steps=2) == []


def never_changes(layer: DiagonalSSM) -> None:
    layer.log_step.fill_(-20.0)


def forgets_everything(layer: DiagonalSSM) -> None:
    layer.log_A_real.copy_((torch.tensor(50.0).log() - layer.log_step)[:, None].expand_as(layer.log_A_real))


@pytest.mark.parametrize(("kill", "words"), [(never_changes, "never changes"), (forgets_everything, "forgets everything")])
def test_a_dead_state_of_our_layer_is_named_before_the_first_update(
    kill: Any, words: str, regression: Any, findings: Any
) -> None:
    module = regression(forecaster("diagonal"))
    with torch.no_grad():
        kill(module.net.ssm_0)
    (found,) = findings(module, steps=2)
    assert (found["id"], found["severity"], found["step"]) == ("dead-state", "warning", 0)
    assert set(found["parameters"]) == {f"net.ssm_0.{name}" for name in ("log_A_real", "A_imag", "log_step")}
    assert words in found["message"]
    assert "Intended:" in found["message"]


def test_a_state_that_dies_during_the_run_is_named(regression: Any, findings: Any) -> None:
    class Dies(regression):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if self.global_step == 2:
                with torch.no_grad():
                    self.net.ssm_1.dt_bias.fill_(-30.0)

    (found,) = [f for f in findings(Dies(forecaster("mamba2")), steps=8) if f["id"] == "dead-state"]
    assert 2 < found["step"] <= 7
    assert set(found["parameters"]) == {"net.ssm_1.dt_bias", "net.ssm_1.A_log"}


class TheirSSM(nn.Module):
    """A diagonal layer as other people write it, with a loop over time."""

    def __init__(self, log_dt: float = -3.0, log_rate: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.log_dt = nn.Parameter(torch.full((8, 1), log_dt))
        self.A_log = nn.Parameter(log_rate + torch.log(torch.arange(1.0, 5.0)).expand(8, 4).clone())
        self.B, self.C = nn.Parameter(torch.randn(8, 4)), nn.Parameter(torch.randn(8, 4))
        self.D = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        dt = self.log_dt.exp()  # (d 1)
        A_bar = torch.exp(-dt * self.A_log.exp())  # (d n)
        h, ys = x.new_zeros(len(x), 8, 4), []
        for t in range(x.shape[1]):
            h = A_bar * h + dt * self.B * x[:, t, :, None]
            ys.append((self.C * h).sum(-1) + self.D * x[:, t])
        return torch.stack(ys, 1)


def theirs(**arguments: float) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), TheirSSM(**arguments), nn.Linear(8, 1))


@pytest.mark.parametrize(("arguments", "guilty"), [({"log_dt": -20.0}, "net.1.log_dt"), ({"log_rate": 9.0}, "net.1.A_log")])
def test_a_dead_state_of_somebodys_layer_is_known_by_its_graph_and_gradients(
    arguments: dict[str, float], guilty: str, regression: Any, findings: Any
) -> None:
    assert findings(regression(theirs())) == []
    (found,) = findings(regression(theirs(**arguments)))
    assert (found["id"], found["severity"]) == ("dead-state", "warning")
    assert found["step"] <= 5
    assert guilty in found["parameters"]
    assert set(found["parameters"]) <= {f"net.1.{name}" for name in ("log_dt", "A_log", "B", "C")}


class ZeroExponents(nn.Module):
    """A zero-initialised log-variance, a logit scale and a log-gain: exp(0) is 1 in every element."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(18, 8), nn.Linear(8, 1)
        self.log_variance = nn.Linear(8, 8)
        nn.init.zeros_(self.log_variance.weight)
        nn.init.zeros_(self.log_variance.bias)
        self.log_gain, self.log_scale = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x.flatten(1)))
        h = h + 0.1 * torch.randn_like(h) * (0.5 * self.log_variance(h)).exp()
        return self.head(h * self.log_gain.exp()) * self.log_scale.exp()


@pytest.mark.parametrize("head", ["random", "zero"])
def test_exponents_that_begin_at_zero_are_left_in_peace(head: str, regression: Any, findings: Any) -> None:
    net = ZeroExponents()
    if head == "zero":
        nn.init.zeros_(net.head.weight)
    assert findings(regression(net), steps=8) == []
