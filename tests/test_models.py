"""Every model of conf/model goes through the same real run: it trains healthily, is compared, and reloads as it was."""

import io
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from statewise import schemas
from statewise.evaluation import in_original_units
from statewise.restore import restore
from statewise.runs import load_run
from statewise.signatures import schema_of
from statewise.train import main

CONF = Path(__file__).parents[1] / "conf"
MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))

# Each model gets those of these settings that it has.
SMALL = {"d_model": 4, "d_state": 4, "headdim": 4, "chunk_size": 8, "n_layers": 1}
RUN = [
    "data=lti",
    "data.steps=300",
    "data.window=16",
    "data.batch_size=64",
    "scheduler.warmup_steps=2",
    "trainer.max_epochs=1",
    "trainer.log_every_n_steps=1",
    "health=strict",
    "logger=csv",
    "report=false",
]


def small(model: str) -> list[str]:
    options = schema_of(schemas.CONSTRUCTORS[f"model/{model}"]).__dataclass_fields__
    return [*RUN, f"model={model}", *(f"model.{key}={value}" for key, value in SMALL.items() if key in options)]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """One sweep over all models, each of its default size: where it is, and what it printed."""
    folder = tmp_path_factory.mktemp("sweep")
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.chdir(folder)
        code = main(["-m", "launcher=basic", f"hydra.sweep.dir={folder / 'jobs'}", f"model={','.join(MODELS)}", *RUN])
    assert code == 0, said.getvalue()
    return folder / "jobs", said.getvalue()


def test_a_sweep_over_all_models_compares_them_in_one_table(sweep):
    rows = sweep[1].rpartition("overrides")[2].splitlines()
    for job, model in enumerate(MODELS):
        cells = [line.lstrip("★ ").split() for line in rows]
        row = next(found for found in cells if found[:1] == [str(job)] and f"model={model}" in found)
        assert "ok" in row


@pytest.mark.parametrize("model", MODELS)
def test_every_model_trains_healthily(model, sweep):
    summary = load_run(sweep[0] / str(MODELS.index(model))).summary
    assert (summary["model"], summary["status"], summary["steps"]) == (model, "ok", 4)
    assert summary["health"] == {"verdict": "healthy", "findings": []}


@pytest.mark.parametrize("model", MODELS)
def test_a_restored_model_predicts_what_the_run_predicted(model, sweep):
    run = load_run(sweep[0] / str(MODELS.index(model)))
    restored, datamodule = restore(run.folder)
    with torch.inference_mode():
        last = [restored(batch.inputs, last_only=True)[0][:, -1] for batch in datamodule.evaluation_batches("test")]
    scaled = torch.cat(last).view(-1, datamodule.horizon, datamodule.n_targets)
    again = in_original_units(datamodule, scaled)[1]
    np.testing.assert_allclose(again.reshape(-1), run.predictions["prediction"].to_numpy(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("model", MODELS)
def test_a_restored_model_follows_a_stream_bar_by_bar(model, sweep):
    restored, datamodule = restore(sweep[0] / str(MODELS.index(model)))
    window = next(datamodule.evaluation_batches("test")).inputs[:1]
    state = restored.initial_state(1)
    with torch.inference_mode():
        for bar in window.unbind(1):
            prediction, state = restored.step(bar, state)
        expected = restored(window, last_only=True)[0][:, -1]
    torch.testing.assert_close(prediction, expected, rtol=0, atol=1e-10)


def weights(outcome):
    return torch.load(outcome.folder / "checkpoints" / "last.ckpt")["state_dict"]


def assert_healthy(outcome):
    assert outcome.code == 0, outcome.err
    assert outcome.summary["health"] == {"verdict": "healthy", "findings": []}


@pytest.mark.parametrize("model", MODELS)
def test_every_model_trains_on_all_steps_of_streams_whose_state_it_carries(model, train):
    outcome = train(*small(model), "data.sampling=contiguous", "data.batch_size=4", "task.supervision=all", tiny=False)
    assert_healthy(outcome)
    assert outcome.summary["steps"] == 4


def test_a_model_without_layers_has_its_report_and_its_dashboard_and_resumes_to_the_bit(train):
    whole = train(*small("nlinear"), "logger=tensorboard", "report=true", tiny=False)
    assert_healthy(whole)
    assert whole.out.count("spectral_projection: nothing to project") == 1
    assert list(whole.folder.glob("events.out.tfevents*"))
    report = (whole.folder / "report.html").read_text()
    assert "nlinear on lti" in report
    assert "Every parameter has a row" in report
    assert "outside the state explodes" not in report
    part = train(*small("nlinear"), "trainer.stop_after_steps=2", tiny=False)
    rest = train(f"resume={part.folder}", tiny=False)
    assert_healthy(rest)
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(rest)[name]), name


def test_a_target_without_a_past_is_refused_by_the_model_that_needs_one(train, tmp_path):
    rows = pl.DataFrame({"a": np.arange(60.0), "b": np.sin(np.arange(60.0))})
    rows.write_csv(tmp_path / "rows.csv")
    data = ["data=file", "data.path=rows.csv", "data.window=4", "data.features=[a]", "data.targets=[b]"]
    outcome = train("model=nlinear", *data, tiny=False)
    assert outcome.code == 2
    assert len(outcome.err.strip().splitlines()) == 1
    assert "model=nlinear predicts each of data.targets from its own past" in outcome.err
