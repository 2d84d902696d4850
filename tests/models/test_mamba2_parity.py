"""Mamba-2 against the implementation in transformers (extra `parity`): the same weights give the same numbers.

Its mixer computes scan and norm in float32 whatever its weights are, so that float32 is what can be compared. It norms
every group of heads by itself and clamps the step to `time_step_limit`, by default to [0, inf), which does nothing; the
other `time_step_*` only shape its initialisation, which the copied weights replace.
"""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from statewise.models.mamba2 import Mamba2

D_MODEL, HEADDIM, HEADS, D_STATE, CHUNK = 16, 4, 8, 6, 16
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    """The module with the mixer; imported when the first test needs it, because that takes seconds.

    Its torch form is wanted even where the CUDA packages are installed, which it would choose while it is imported.
    """
    pytest.importorskip("transformers")
    with pytest.MonkeyPatch.context() as patch:
        for package in ("mamba_ssm", "causal_conv1d"):
            patch.setitem(sys.modules, package, None)
        from transformers.models.mamba2 import modeling_mamba2
    return modeling_mamba2


def config(n_groups: int) -> Any:
    from transformers import Mamba2Config

    return Mamba2Config(
        hidden_size=D_MODEL,
        num_heads=HEADS,
        head_dim=HEADDIM,
        expand=2,
        state_size=D_STATE,
        n_groups=n_groups,
        num_hidden_layers=1,
        chunk_size=CHUNK,
    )


def pair(peer: ModuleType, n_groups: int) -> tuple[nn.Module, Mamba2]:
    """Their mixer with every parameter drawn at random, and our layer with the same parameters."""
    torch.manual_seed(n_groups)
    theirs = peer.Mamba2Mixer(config(n_groups), layer_idx=0)
    ours = Mamba2(d_model=D_MODEL, d_state=D_STATE, headdim=HEADDIM, n_groups=n_groups, chunk_size=CHUNK)
    with torch.no_grad():
        theirs.A_log.uniform_(-1, 2)
        theirs.dt_bias.uniform_(-4, 1)
        theirs.D.normal_()
        theirs.norm.weight.uniform_(0.5, 1.5)
        given = dict(theirs.named_parameters())
        for name, parameter in ours.named_parameters():
            source = {"conv_weight": "conv1d.weight", "conv_bias": "conv1d.bias"}.get(name, name)
            parameter.copy_(given.pop(source).view_as(parameter))
    assert not given
    return theirs, ours


def error(found: Tensor, expected: Tensor) -> float:
    largest = float((found.double() - expected.double()).abs().max())
    # A single step from rest does not depend on A: both gradients are zero.
    return largest / (float(expected.double().abs().max()) or 1.0)


@pytest.mark.parametrize("n_groups", [1, 2, 4])
@pytest.mark.parametrize("t", [1, 7, 60, 65, 130])
def test_outputs_and_gradients_are_those_of_an_independent_implementation(peer: ModuleType, t: int, n_groups: int) -> None:
    theirs, ours = pair(peer, n_groups)
    x = torch.randn(3, t, D_MODEL)
    upstream = torch.randn_like(x)
    results = []
    for run, module in ((theirs, theirs), (lambda x: ours(x)[0], ours)):
        leaf = x.clone().requires_grad_()
        y = run(leaf)
        y.backward(upstream)
        gradients = {name.replace("conv1d.", "conv_"): p.grad.squeeze() for name, p in module.named_parameters()}
        results.append({"y": y.detach(), "x": leaf.grad, **gradients})
    expected, found = results
    assert set(found) == set(expected)
    errors = {name: error(found[name], expected[name]) for name in expected}
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.parametrize("n_groups", [1, 4])
def test_streaming_is_that_of_an_independent_implementation(peer: ModuleType, n_groups: int) -> None:
    from transformers import DynamicCache

    theirs, ours = pair(peer, n_groups)
    x = torch.randn(3, 30, D_MODEL)
    cache = DynamicCache(config=config(n_groups))
    with torch.no_grad():
        expected = [theirs(x[:, :20], cache=cache)] + [theirs(x[:, t : t + 1], cache=cache) for t in range(20, 30)]
        y, state = ours(x[:, :20])
        found = [y]
        for t in range(20, 30):
            y_t, state = ours.step(x[:, t], state)
            found.append(y_t[:, None])
    assert error(torch.cat(found, 1), torch.cat(expected, 1)) <= TOLERANCE
    assert error(state.ssm, cache.get_recurrent_state(0)) <= TOLERANCE
