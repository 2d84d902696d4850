"""An older or foreign checkpoint becomes one of this release, from which the same is predicted; the file stays as it is."""

import shutil

import pytest
import torch
from omegaconf import OmegaConf

from statewise.checkpoints import ENTRY, read_checkpoint
from statewise.checkpoints.migrate import migrate


def last(run):
    return torch.load(run / "checkpoints" / "last.ckpt")


def saved(value, path):
    torch.save(value, path)
    return path


def without_entry(run):
    checkpoint = last(run)
    del checkpoint[ENTRY]
    return checkpoint


def weights_of(run):
    return {name.removeprefix("model."): tensor for name, tensor in last(run)["state_dict"].items()}


def test_weights_alone_become_a_checkpoint_with_the_help_of_their_run(run, tmp_path, predictions):
    path = saved(weights_of(run), tmp_path / "weights.pt")
    result = migrate(path, run=run)
    assert result.written == tmp_path / "weights-migrated.ckpt"
    assert result.notes == [
        f"configuration of the run {run}",
        f"scaler and form of the data of the run {run}",
        "schema version 0 became 1",
    ]
    assert predictions(result.written).equals(predictions(run / "checkpoints" / "last.ckpt"))


def test_prefixes_are_taken_off_and_told(run, tmp_path):
    path = saved({f"module._orig_mod.{name}": tensor for name, tensor in weights_of(run).items()}, tmp_path / "ddp.pt")
    result = migrate(path, run=run)
    assert "12 of 12 names had prefixes, as module._orig_mod.input_proj.weight" in result.notes
    assert list(read_checkpoint(result.written)["state_dict"]) == list(last(run)["state_dict"])


def test_weights_alone_become_a_checkpoint_with_overrides_and_the_data_they_name(run, tmp_path, predictions):
    path = saved(weights_of(run), tmp_path / "weights.pt")
    overrides = last(run)[ENTRY]["overrides"]
    result = migrate(path, overrides=overrides)
    assert "scaler learnt anew, from the training part of the data" in result.notes
    assert read_checkpoint(result.written)[ENTRY]["overrides"] == overrides
    assert predictions(result.written).equals(predictions(run / "checkpoints" / "last.ckpt"))


def test_a_run_without_a_readable_checkpoint_is_asked_for_its_data(run, tmp_path, predictions):
    folder = shutil.copytree(run, tmp_path / "run")
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    path = saved(without_entry(run), folder / "checkpoints" / "last.ckpt")
    result = migrate(path, folder / "checkpoints" / "best.ckpt", run=folder)
    assert predictions(folder).equals(predictions(run / "checkpoints" / "last.ckpt"))
    assert read_checkpoint(result.written)[ENTRY]["config"]["model"]["d_state"] == 4


def test_a_lightning_checkpoint_of_our_data_module_can_still_be_resumed(run, tmp_path, train):
    result = migrate(saved(without_entry(run), tmp_path / "plain.ckpt"), run=run)
    assert not any("left out" in note for note in result.notes)
    outcome = train(f"resume={result.written}", "data=lti", tiny=False)
    assert outcome.code == 0, outcome.err
    assert outcome.summary["steps"] == 5


def test_another_lightning_checkpoint_predicts_and_says_why_it_cannot_be_resumed(run, tmp_path, predictions, train):
    checkpoint = without_entry(run)
    del checkpoint["LTI"]
    result = migrate(saved(checkpoint, tmp_path / "theirs.ckpt"), run=run)
    assert any(note.startswith("left out optimizer_states, lr_schedulers, loops, callbacks: where in") for note in result.notes)
    assert predictions(result.written).equals(predictions(run / "checkpoints" / "last.ckpt"))
    outcome = train(f"resume={result.written}", tiny=False)
    assert outcome.code == 2
    assert "it can predict and be evaluated, but there is nothing to resume" in outcome.err


def test_the_configuration_may_stand_in_the_hyperparameters_as_an_object(run, tmp_path, predictions):
    checkpoint = without_entry(run)
    checkpoint["hyper_parameters"] = {"config": OmegaConf.create(last(run)[ENTRY]["config"])}
    result = migrate(saved(checkpoint, tmp_path / "theirs.ckpt"))
    assert any(note.startswith("pickled objects became plain values, no code was run: omegaconf.") for note in result.notes)
    assert "configuration of its own hyper_parameters" in result.notes
    assert predictions(result.written).equals(predictions(run / "checkpoints" / "last.ckpt"))


def test_a_configuration_that_names_other_code_is_not_followed(run, tmp_path):
    checkpoint = without_entry(run)
    config = last(run)[ENTRY]["config"]
    checkpoint["hyper_parameters"] = {**config, "data": {**config["data"], "_target_": "subprocess.getoutput"}}
    with pytest.raises(ValueError, match=r"hyper_parameters\.data\._target_ is 'subprocess\.getoutput', which is no part"):
        migrate(saved(checkpoint, tmp_path / "evil.ckpt"))


def test_what_is_up_to_date_is_left_alone(run, tmp_path):
    path = run / "checkpoints" / "last.ckpt"
    result = migrate(path, tmp_path / "out.ckpt")
    assert result.written is None
    assert result.notes == ["nothing to do: schema version 1, plain values only"]
    assert not (tmp_path / "out.ckpt").exists()


def test_what_cannot_be_made_plain_is_left_out_and_told(run, tmp_path):
    checkpoint = last(run)
    checkpoint["hyper_parameters"] = {"activation": torch.nn.GELU}
    result = migrate(saved(checkpoint, tmp_path / "old.ckpt"))
    assert "left out hyper_parameters.activation: class torch.nn.modules.activation.GELU has no plain value" in result.notes
    assert read_checkpoint(result.written)["hyper_parameters"] == {}


def test_no_file_is_overwritten_unless_that_is_asked(run, tmp_path):
    path = saved(weights_of(run), tmp_path / "weights.pt")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"weights\.pt is there already; choose another --out, or allow it with --overwrite"):
        migrate(path, path, run=run)
    assert path.read_bytes() == before
    assert migrate(path, path, run=run, overwrite=True).written == path
    assert read_checkpoint(path)[ENTRY]["schema_version"] == 1


def test_a_disk_that_fills_up_leaves_nothing(run, tmp_path, monkeypatch):
    path = saved(weights_of(run), tmp_path / "weights.pt")

    def disk_full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", disk_full)
    with pytest.raises(OSError, match="No space left"):
        migrate(path, run=run)
    assert [entry.name for entry in tmp_path.iterdir()] == ["weights.pt"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], r"weights\.pt \(state_dict\) does not say of which configuration it is: give the configuration"),
        (["data=lti", "data.steps=400", "model.d_model=8"], r"weights\.pt does not fit this model: .*--run RUN, or overrides"),
        (["data=lti", "model.d_mdoel=8"], r"there is no configuration key 'model\.d_mdoel'; did you mean model\.d_model"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(overrides, message, run, tmp_path):
    path = saved(weights_of(run), tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=message):
        migrate(path, overrides=overrides)
    assert [entry.name for entry in tmp_path.iterdir()] == ["weights.pt"]


def test_two_configurations_are_one_too_many(run, tmp_path):
    path = saved(last(run), tmp_path / "ours.ckpt")
    with pytest.raises(ValueError, match="has its own configuration: leave out --run and overrides"):
        migrate(path, run=run)
    with pytest.raises(ValueError, match="give either --run RUN or overrides"):
        migrate(path, run=run, overrides=["seed=1"])


def test_a_later_version_is_refused(run, tmp_path):
    checkpoint = last(run)
    checkpoint[ENTRY] = {**checkpoint[ENTRY], "schema_version": 2, "version": "7.0"}
    with pytest.raises(ValueError, match=r"schema version 2, this release .* use the release that wrote it \(7\.0\)"):
        migrate(saved(checkpoint, tmp_path / "new.ckpt"))
