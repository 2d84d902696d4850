"""Case D14: checkpoints of compiled, wrapped and older models load whole, or are refused with names, shapes and the cause.

After PL #17415 and #20233, train-llm-from-scratch #36, stable-pretraining #388, PyTorch Forecasting #1998.
"""

import shutil

import pytest
import torch
from omegaconf import OmegaConf

PREFIXES = ["_orig_mod.", "module.", "module._orig_mod.model.", "_forward_module.module.net."]


def changed(run, path, change):
    """A copy of a run's last checkpoint of which `change` has made another one."""
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt")
    change(checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(checkpoint, path)
    return path


def prefixed(prefix):
    def change(checkpoint):
        weights = checkpoint["state_dict"]
        checkpoint["state_dict"] = {prefix + name.removeprefix("model."): tensor for name, tensor in weights.items()}

    return change


def with_a_configuration_object(checkpoint):
    checkpoint["hyper_parameters"] = {"config": OmegaConf.create({"model": {"d_state": 4}})}


def without_delta(checkpoint):
    del checkpoint["state_dict"]["model.ssm_0.delta"]


def with_the_old_shape(checkpoint):
    checkpoint["state_dict"]["model.ssm_0.B"] = torch.zeros(4, 4, dtype=torch.float64)


REFUSED = [
    (without_delta, ["ssm_0.delta is missing in the checkpoint", "before delta was a registered parameter"]),
    (
        with_the_old_shape,
        [
            "ssm_0.B is [4, 4] in the checkpoint and [4, 8] in the model",
            "[d_state, d_model]: written before B was made d_inner",
        ],
    ),
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_changes_no_prediction(prefix, run, tmp_path, predictions):
    path = changed(run, tmp_path / "theirs.ckpt", prefixed(prefix))
    assert predictions(path).equals(predictions(run / "checkpoints" / "last.ckpt"))


@pytest.mark.parametrize("prefix", PREFIXES[2:])
def test_a_run_whose_checkpoint_has_a_prefix_is_evaluated_as_ever(prefix, run, tmp_path, statewise):
    folder = shutil.copytree(run, tmp_path / "run")
    changed(run, folder / "checkpoints" / "best.ckpt", prefixed(prefix))
    shutil.copy(run / "checkpoints" / "last.ckpt", tmp_path / "last.ckpt")
    tables = [statewise("evaluate", place).output for place in (folder, tmp_path / "last.ckpt")]
    figures = [table.partition("\n")[2].partition("result")[0] for table in tables]
    assert "linear" in figures[0]
    assert figures[0] == figures[1]


@pytest.mark.parametrize("prefix", PREFIXES[2:])
def test_a_run_resumed_from_a_prefixed_checkpoint_ends_with_the_same_weights(prefix, run, resumed, tmp_path, train):
    path = changed(run, tmp_path / "theirs.ckpt", prefixed(prefix))
    outcome = train(f"resume={path}", tiny=False)
    assert outcome.code == 0, outcome.err
    weights = torch.load(outcome.folder / "checkpoints" / "last.ckpt")["state_dict"]
    assert weights.keys() == resumed.keys()
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in weights.items())


@pytest.fixture(scope="module")
def resumed(run, tmp_path_factory):
    """The weights of the run when it has gone on to its end."""
    from statewise.train import main

    folder = tmp_path_factory.mktemp("resumed") / "run"
    assert main([f"resume={run}", f"hydra.run.dir={folder}"]) == 0
    return torch.load(folder / "checkpoints" / "last.ckpt")["state_dict"]


def test_a_checkpoint_with_a_configuration_object_says_how_it_is_made_plain(run, tmp_path, statewise, new_file):
    path = changed(run, tmp_path / "old.ckpt", with_a_configuration_object)
    refused = statewise("predict", path, "--data", new_file)
    assert refused.exit_code == 2
    assert "holds pickled objects (omegaconf.dictconfig.DictConfig, " in refused.output
    assert f"make a plain copy, which runs none, with statewise checkpoint migrate {path}" in refused.output


def test_the_plain_copy_predicts_and_resumes_like_the_original(run, resumed, tmp_path, statewise, predictions, train):
    path = changed(run, tmp_path / "old.ckpt", with_a_configuration_object)
    plain = tmp_path / "plain.ckpt"
    assert statewise("checkpoint", "migrate", path, "--out", plain).exit_code == 0
    assert torch.load(plain)["hyper_parameters"] == {"config": {"model": {"d_state": 4}}}
    assert predictions(plain).equals(predictions(run / "checkpoints" / "last.ckpt"))
    outcome = train(f"resume={plain}", tiny=False)
    assert outcome.code == 0, outcome.err
    weights = torch.load(outcome.folder / "checkpoints" / "last.ckpt")["state_dict"]
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in weights.items())


@pytest.mark.parametrize(("change", "said"), REFUSED, ids=["without delta", "B of the old shape"])
@pytest.mark.parametrize("command", ["predict", "evaluate", "resume"])
def test_what_does_not_fit_is_refused_wherever_it_is_taken(command, change, said, run, tmp_path, statewise, new_file, train):
    path = changed(run, tmp_path / "old.ckpt", change)
    if command == "resume":
        outcome = train(f"resume={path}", tiny=False)
        code, text = outcome.code, outcome.err
    else:
        result = statewise(command, path, *(["--data", new_file] if command == "predict" else []))
        code, text = result.exit_code, result.output
    assert code == 2
    (line,) = [line for line in text.splitlines() if "does not fit this model" in line]
    for part in [str(path), *said]:
        assert part in line
