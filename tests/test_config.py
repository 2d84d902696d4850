"""A refused configuration ends in one line that names the key and what may have been meant."""

import pytest

from statewise.config import suggest
from statewise.train import main

REFUSED = {
    "model.d_stat=8": "there is no configuration key 'model.d_stat'; did you mean model.d_state",
    "modle=mamba2": "there is no configuration key 'modle'; did you mean model?",
    "hydra.ouput_subdir=x": "there is no configuration key 'hydra.ouput_subdir'; did you mean hydra.output_subdir",
    "trainer.max_epoch=1": "there is no configuration key 'trainer.max_epoch'; did you mean trainer.max_epochs",
    "d_state=8": "there is no configuration key 'd_state'; did you mean model.d_state?",
    "data.missing.max_fil=3": "there is no configuration key 'data.missing.max_fil'; did you mean data.missing.max_fill",
    "model=dens_ssm": "there is no model 'dens_ssm'; did you mean dense_ssm?",
    "data=air_qualty": "there is no data 'air_qualty'; did you mean air_quality?",
    "experiment=ltl": "there is no experiment 'ltl'; did you mean lti?",
    "trainer.max_epochs=many": "trainer.max_epochs must be a whole number, got 'many'",
    "optimizer.lr=fast": "optimizer.lr must be a number, got 'fast'",
    "~callbacks.dashbord": "cannot remove 'callbacks.dashbord': there is no such key; did you mean callbacks.dashboard",
    "nonsense": "cannot read the override 'nonsense': write KEY=VALUE",
    "data.features=[a": "cannot read the override 'data.features=[a'",
    "+sede=1": "there is no configuration key 'sede'; did you mean seed",
}


@pytest.mark.parametrize("override", REFUSED)
def test_a_wrong_override_is_refused_in_one_line_before_any_work(override, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([override]) == 2
    said = capsys.readouterr()
    lines = said.err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(REFUSED[override])
    assert "Traceback" not in said.err + said.out


YAML_FAULTS = {
    "model:\n  d_stat: 8": "there is no configuration key 'model.d_stat'; did you mean model.d_state",
    "trainer:\n  max_epochs: many": "trainer.max_epochs must be a whole number, got 'many'",
    "traner:\n  max_epochs: 1": "there is no configuration key 'traner'; did you mean trainer?",
    "model:\n  missing: {}": "there is no configuration key 'model.missing'",
}


@pytest.mark.parametrize("text", YAML_FAULTS)
def test_the_same_faults_inside_a_yaml_file_are_refused_with_its_name(text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")
    assert main(["--config-dir", str(tmp_path), "experiment=mine"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "experiment/mine.yaml: " in lines[0]
    assert YAML_FAULTS[text] in lines[0]


def test_a_traceback_is_shown_when_it_is_asked_for(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert main(["model.d_stat=8"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_key_given_without_its_path_finds_it():
    assert suggest("d_state", ["model.d_state", "model.d_model", "data.window"]) == "; did you mean model.d_state?"
    assert suggest("zzz", ["model.d_state"]) == ""
