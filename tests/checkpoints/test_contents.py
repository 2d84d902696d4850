"""What a file holds is told of any kind of file, and nothing of it is run."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from statewise import __version__
from statewise.checkpoints.contents import contents, describe_tensor


def test_a_checkpoint_of_ours_tells_everything(run):
    found = contents(run / "checkpoints" / "last.ckpt")
    assert found["kind"] == "checkpoint of statewise"
    assert (found["schema_version"], found["statewise_version"]) == (1, __version__)
    assert (found["model"], found["data"], found["precision"]) == ("dense_ssm", "LTI", "64-true")
    assert found["position"] == {"epochs": 0, "steps": 4, "batches": 4}
    (optimizer,) = found["optimizers"]
    assert (optimizer["parameters"], optimizer["with_state"], optimizer["steps"]) == (12, 12, [4])
    assert optimizer["state"] == ["exp_avg", "exp_avg_sq", "step"]
    assert found["schedulers"][0]["steps"] == 4
    assert "BestAndLast" in found["callbacks"]
    assert found["scaler"] == {"columns": ["u0", "u1", "y0", "y1", "y2", "y3"], "series": []}
    assert found["form"]["targets"] == ["y0", "y1", "y2", "y3"]
    assert "data=lti" in found["overrides"]
    names = [row["name"] for row in found["parameters"]]
    assert names == list(torch.load(run / "checkpoints" / "last.ckpt")["state_dict"])
    json.dumps(found, allow_nan=False)


def test_the_best_value_is_that_of_the_run(origin_run):
    found = contents(origin_run / "checkpoints" / "best.ckpt")
    assert found["best"]["monitor"] == "val/mse"
    assert 0 < found["best"]["value"] < 100
    assert found["position"] == {"epochs": 1, "steps": 5, "batches": 0}


def test_a_plain_lightning_checkpoint_is_told(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.2)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    current = {"processed": 3}
    checkpoint = {
        "pytorch-lightning_version": "2.6.6",
        "epoch": 2,
        "global_step": 30,
        "state_dict": model.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
        "loops": {"fit_loop": {"epoch_progress": {"current": current}, "epoch_loop.batch_progress": {"current": current}}},
        "callbacks": {"ModelCheckpoint{'monitor': 'loss'}": {"monitor": "loss", "best_model_score": torch.tensor(0.25)}},
    }
    torch.save(checkpoint, tmp_path / "theirs.ckpt")
    found = contents(tmp_path / "theirs.ckpt")
    assert (found["kind"], found["lightning_version"], found["schema_version"]) == ("Lightning checkpoint", "2.6.6", None)
    assert found["position"] == {"epochs": 3, "steps": 30, "batches": 3}
    assert found["best"] == {"monitor": "loss", "value": 0.25, "step": None}
    assert found["optimizers"][0]["weight_decay"] == [0.2]
    assert found["optimizers"][0]["steps"] == [1]


@pytest.mark.parametrize(
    ("wrapped", "kind"),
    [
        (lambda weights: weights, "state_dict"),
        (lambda weights: {"model": weights, "step": 3}, "checkpoint with the weights under 'model'"),
        (lambda weights: {"model_state_dict": weights, "epoch": 1}, "checkpoint with the weights under 'model_state_dict'"),
        (lambda weights: {"encoder": weights, "note": "x"}, "checkpoint with the weights under 'encoder'"),
    ],
)
def test_weights_are_found_where_programs_keep_them(wrapped, kind, tmp_path):
    weights = nn.Linear(2, 3).state_dict()
    torch.save(wrapped(weights), tmp_path / "theirs.pt")
    found = contents(tmp_path / "theirs.pt")
    assert found["kind"] == kind
    assert [row["name"] for row in found["parameters"]] == ["weight", "bias"]
    assert found["parameters"][0]["shape"] == [3, 2]


def test_safetensors_and_their_metadata_are_told(tmp_path):
    save_file({"w": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "m.safetensors", {"by": "rust"})
    found = contents(tmp_path / "m.safetensors")
    assert (found["kind"], found["metadata"]) == ("safetensors", {"by": "rust"})
    assert found["parameters"] == [describe_tensor("w", torch.ones(2, dtype=torch.bfloat16))]


def test_a_pickled_module_and_other_objects_are_named_and_not_loaded(tmp_path):
    torch.save(nn.Sequential(nn.Linear(2, 3)), tmp_path / "module.pt")
    found = contents(tmp_path / "module.pt")
    assert (found["kind"], [row["name"] for row in found["parameters"]]) == ("pickled module", ["0.weight", "0.bias"])
    torch.save({"state_dict": {"w": torch.ones(1)}, "optimizer": nn.Tanh, "path": Path("x")}, tmp_path / "mixed.pt")
    found = contents(tmp_path / "mixed.pt")
    assert found["pickled"] == ["pathlib.PosixPath", "torch.nn.modules.activation.Tanh"]
    assert found["left_out"] == {"optimizer": "class torch.nn.modules.activation.Tanh"}


def test_the_norm_is_of_what_is_finite_and_the_rest_is_counted():
    row = describe_tensor("w", torch.tensor([3.0, 4.0, float("nan"), float("inf")]))
    assert (row["norm"], row["not_finite"], row["entries"], row["dtype"]) == (5.0, 2, 4, "float32")
    assert describe_tensor("n", torch.tensor([1, 2]))["norm"] is None
    assert describe_tensor("h", torch.full((2,), 60000.0, dtype=torch.float16))["norm"] == pytest.approx(
        60000 * 2**0.5, rel=1e-3
    )
    assert describe_tensor("c", torch.tensor([3 + 4j]))["norm"] == 5.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(2), "holds a tensor, not tensors under names"),
        ({"a": 1, "b": "x"}, "holds no tensors under names; its entries are a, b"),
        ({"a": {"w": torch.zeros(1)}, "b": {"w": torch.zeros(1)}}, "holds tensors under a, b: which of them are the model's"),
    ],
)
def test_a_file_without_weights_is_refused(value, message, tmp_path):
    torch.save(value, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=message):
        contents(tmp_path / "other.pt")


def test_a_damaged_file_is_refused_in_one_line(tmp_path):
    for name in ("half.ckpt", "half.safetensors"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 nothing")
        with pytest.raises(ValueError, match="cannot be read as") as error:
            contents(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        contents(tmp_path / "none.ckpt")


def test_files_of_old_releases_of_torch_and_other_layouts_are_read(tmp_path):
    weights = {"w": torch.eye(2), "sparse": torch.eye(2).to_sparse()}
    torch.save({"w": torch.eye(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save(weights, tmp_path / "sparse.pt")
    assert contents(tmp_path / "old.pt")["parameters"][0]["norm"] == 2**0.5
    assert [row["norm"] for row in contents(tmp_path / "sparse.pt")["parameters"]] == [2**0.5, 2**0.5]


def test_what_no_stand_in_can_replace_is_told_in_one_line(tmp_path):
    torch.save({"w": torch.ones(1), "list": Listed([1])}, tmp_path / "odd.pt")
    with pytest.raises(
        ValueError, match=r"odd\.pt holds pickled objects that no stand-in can replace \(Can only (ap|ex)"
    ) as error:
        contents(tmp_path / "odd.pt")
    assert "\n" not in str(error.value)


class Listed(list):
    """torch fills no list of another class."""
