"""`statewise check`: the first steps of a run, a table, an exit code that a CI can use, and nothing left behind."""

import tempfile

import pytest
from typer.testing import CliRunner

from statewise import cli
from statewise.commands import check
from statewise.models.forecaster import Forecaster
from statewise.task import Forecasting

DATA = ["data=lti", "data.steps=400", "data.window=16", "data.batch_size=64"]
MODEL = ["model.d_model=4", "model.d_state=4", "model.n_layers=1"]
LOOP = ["scheduler.warmup_steps=2", "trainer.max_epochs=9"]


@pytest.fixture
def checked(capsys, monkeypatch, tmp_path):
    """Run the check in an empty folder and return (exit code, standard output, standard error)."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(*overrides, model=MODEL, data=DATA):
        capsys.readouterr()
        code = check.main([*data, *model, *LOOP, *overrides])
        said = capsys.readouterr()
        assert list(folder.iterdir()) == []
        assert list(tmp_path.glob("statewise-check-*")) == []
        return code, said.out, said.err

    return run


def test_a_healthy_run_is_told_so_and_nothing_is_left_behind(checked):
    code, out, err = checked()
    assert (code, err) == (0, "")
    assert "dense_ssm on lti" in out
    assert "; 20 optimiser steps" in out
    assert out.split()[-2:] == ["verdict", "healthy"]


def test_a_run_shorter_than_the_check_is_looked_at_as_far_as_it_goes(checked):
    code, out, _ = checked("trainer.max_epochs=1")
    assert code == 0
    assert "; 5 optimiser steps" in out


def test_an_error_is_explained_and_gives_1(checked):
    code, out, err = checked("fault=frozen_A")
    assert code == 1
    assert "frozen-by-mistake" in out
    assert "before the first update" in out
    assert "model.ssm_0.A" in out
    assert "broken on purpose" in out
    assert err == "not healthy: frozen-by-mistake (error)\n"


def test_a_warning_gives_1_as_well(checked):
    code, _, err = checked("fault=rounded_loss")
    assert (code, err) == (1, "not healthy: dtype-round-trip (warning)\n")


def test_what_is_declared_intended_is_healthy(checked):
    code, _, err = checked("fault=frozen_A", "health.frozen=[ssm_0.A]")
    assert (code, err) == (0, "")


def test_findings_do_not_stop_the_check_so_that_it_shows_all_of_them(checked):
    code, out, _ = checked("fault=frozen_A", "health.policy=error")
    assert code == 1
    assert "; 20 optimiser steps" in out


def test_numbers_that_are_no_longer_finite_give_1(checked, monkeypatch):
    step = Forecasting.training_step

    def poisoned(self, batch, batch_idx):
        return step(self, batch, batch_idx) * (float("nan") if self.global_step == 8 else 1.0)

    monkeypatch.setattr(Forecasting, "training_step", poisoned)
    code, out, err = checked()
    assert code == 1, err
    assert "diverged" in out
    assert err.startswith("not healthy: ")
    assert len(err.splitlines()) == 1


def test_a_step_that_fails_gives_2_in_one_line(checked, monkeypatch):
    def fails(self, *_, **__):
        raise RuntimeError("shapes do not fit\nand more")

    monkeypatch.setattr(Forecaster, "forward", fails)
    code, out, err = checked()
    assert (code, out) == (2, "")
    assert err.startswith("the first 20 steps could not be made, RuntimeError: shapes do not fit (set HYDRA_FULL_ERROR=1")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.d_state=0"], "model.d_state must be at least 1, got 0"),
        (["modle=gru"], "there is no configuration key 'modle'; did you mean model?"),
        (["callbacks=none"], "needs callbacks.training_health"),
        (["-m", "seed=0,1"], "one run from its beginning"),
        (["resume=outputs"], "one run from its beginning"),
    ],
)
def test_what_cannot_be_checked_gives_2_in_one_line(overrides, said, checked):
    code, out, err = checked(*overrides)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


OWN_MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, *, n_features, n_outputs, horizon, target_inputs, targets_are_levels, width):
        super().__init__()
        self.layers = {layers}
        self.head = nn.Linear(width, n_outputs)

    def forward(self, x, *, last_only):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        y = self.head(x)
        return (y[:, -1:] if last_only else y), None

def net(*, width=8, **shape):
    return lambda **rest: Net(width=width, **rest)
"""


@pytest.mark.parametrize(("layers", "wanted"), [("nn.ModuleList([nn.Linear(6, 8)])", 0), ("[nn.Linear(6, 8).double()]", 1)])
def test_a_model_of_another_project_is_checked_from_its_own_configuration(layers, wanted, checked, tmp_path, monkeypatch):
    own = tmp_path / "own"
    (own / "model").mkdir(parents=True)
    name = f"own_model_{wanted}"
    (own / f"{name}.py").write_text(OWN_MODEL.replace("{layers}", layers))
    (own / "model" / "mine.yaml").write_text(f"_target_: {name}.net\nwidth: 8\n")
    monkeypatch.syspath_prepend(own)
    code, out, err = checked(f"--config-dir={own}", "model=mine", model=[])
    assert code == wanted, err
    assert ("hidden-module" in out) == bool(wanted)


def test_data_that_cannot_be_read_give_2_in_one_line(checked):
    code, out, err = checked("data=file", "data.path=nope.csv", data=[])
    assert (code, out) == (2, "")
    assert "no file" in err
    assert len(err.splitlines()) == 1


def test_the_command_hands_its_overrides_on_and_its_exit_code_back(monkeypatch):
    given = []
    monkeypatch.setattr(check, "main", lambda overrides: given.extend(overrides) or 1)
    result = CliRunner().invoke(cli.app, ["check", "model=gru", "--config-dir", "conf", "~callbacks.dashboard"])
    assert result.exit_code == 1
    assert given == ["model=gru", "--config-dir", "conf", "~callbacks.dashboard"]


def test_the_help_says_what_the_exit_codes_mean():
    text = CliRunner().invoke(cli.app, ["check", "--help"]).output
    assert "health.frozen=[input_proj.*]" in text
    assert all(line in text for line in ("0  healthy", "1  a warning or an error", "2  it could not run"))
