"""Every model of conf/model trains in every precision that a CPU has; in float64, the default, tests/test_models.py."""

import math
from pathlib import Path

import pytest
import torch

MODELS = sorted(path.stem for path in (Path(__file__).parents[1] / "conf" / "model").glob("*.yaml"))

# What makes a model so small that a run of it takes about a second.
TINY_MODEL = {
    "dense_ssm": ["model.d_model=4", "model.d_state=4", "model.n_layers=1"],
    "diagonal_ssm": ["model.d_model=4", "model.d_state=4", "model.n_layers=1"],
    "gru": ["model.d_model=4", "model.n_layers=1"],
    "mamba2": ["model.d_model=8", "model.d_state=4", "model.headdim=4", "model.n_layers=1"],
    "nlinear": [],
}
TINY_RUN = [
    "data=lti",
    "data.steps=240",
    "data.window=16",
    "data.batch_size=32",
    "scheduler.warmup_steps=2",
    "trainer.max_epochs=1",
    "trainer.log_every_n_steps=1",
    "logger=csv",
    "report=false",
]


def test_every_model_is_tried() -> None:
    assert sorted(TINY_MODEL) == MODELS, "give every model of conf/model an entry in TINY_MODEL, and no other"


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_trains_in_every_precision(model, precision, train):
    if model not in TINY_MODEL:
        pytest.fail(f"model={model} has no entry in TINY_MODEL: add the overrides that make it tiny")
    outcome = train(*TINY_RUN, f"model={model}", *TINY_MODEL[model], f"hardware.precision={precision}", tiny=False)
    assert outcome.code == 0, outcome.err
    assert outcome.summary["status"] == "ok"
    assert outcome.summary["health"] == {"verdict": "healthy", "findings": []}
    assert math.isfinite(outcome.summary["test"]["mse"])
    weights = torch.load(outcome.folder / "checkpoints" / "best.ckpt")["state_dict"].values()
    assert {weight.dtype for weight in weights if weight.is_floating_point()} == {torch.float32}
    assert all(bool(weight.isfinite().all()) for weight in weights)
    if precision == "bf16-mixed":
        assert "the foreach form is used" in outcome.out
