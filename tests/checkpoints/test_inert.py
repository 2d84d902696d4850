"""A file with pickled objects is read without loading one: what has a plain value gets it, the rest is named."""

import argparse
import os
import pickle
from collections import OrderedDict, defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from statewise.checkpoints.inert import load_inert, names_in


def leave(trace):
    Path(trace).touch()


class Dangerous:
    """Leaves a trace where anybody loads it."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return leave, (str(self.trace),)


class Restoring:
    """Leaves a trace where anybody gives it its state back."""

    trace = Path("never")

    def __setstate__(self, state):
        self.trace.touch()

    def __getstate__(self):
        return {"a": 1}


def inert(value, tmp_path):
    torch.save(value, tmp_path / "file.pt")
    return load_inert(tmp_path / "file.pt")


def test_a_configuration_becomes_plain_values_and_its_interpolations_stay_text(tmp_path):
    config = OmegaConf.create({"a": 1, "b": {"c": [1, 2.5, None, "x"], "d": "${a}", "e": "${oc.env:HOME}", "f": "???"}})
    assert config.b.d == 1  # fills a cache that goes into the file as well
    found = inert({"hyper_parameters": {"config": config}, "list": OmegaConf.create([1, [2]])}, tmp_path)
    plain = {"a": 1, "b": {"c": [1, 2.5, None, "x"], "d": "${a}", "e": "${oc.env:HOME}", "f": "???"}}
    assert found.value == {"hyper_parameters": {"config": plain}, "list": [1, [2]]}
    assert not found.left_out
    assert found.names[0].startswith("omegaconf.")  # the telling ones before typing.Any and the like


def test_paths_numbers_and_namespaces_become_plain_values(tmp_path):
    value = {
        "path": Path("a/b"),
        "float": np.float64(0.1),
        "narrow": np.float32(0.1),
        "whole": np.int64(-3),
        "truth": np.bool_(True),
        "arguments": argparse.Namespace(lr=1e-3),
        "counts": defaultdict(list, {"a": [1]}),
        "ordered": OrderedDict(a=1),
        "several": (1, {2}),
    }
    assert inert(value, tmp_path).value == {
        "path": "a/b",
        "float": 0.1,
        "narrow": float(np.float32(0.1)),
        "whole": -3,
        "truth": True,
        "arguments": {"lr": 1e-3},
        "counts": {"a": [1]},
        "ordered": {"a": 1},
        "several": (1, {2}),
    }


def test_what_has_no_plain_value_is_left_out_and_named(tmp_path):
    value = {"optimizer": partial(torch.optim.Adam, lr=1), "class": nn.Linear, "array": np.arange(2), "kept": [1, nn.Tanh, 2]}
    found = inert(value, tmp_path)
    assert found.value == {"kept": [1, 2]}
    assert found.left_out == {
        "optimizer": "functools.partial",
        "class": "class torch.nn.modules.linear.Linear",
        "array": "numpy._core.multiarray._reconstruct",
        "kept.1": "class torch.nn.modules.activation.Tanh",
    }


def test_tensors_keep_values_types_and_what_they_share(tmp_path):
    tensor = torch.arange(4.0, dtype=torch.float64)
    found = inert({"a": tensor, "b": nn.Parameter(tensor[1:]), "path": Path("x")}, tmp_path).value
    assert torch.equal(found["a"], tensor)
    assert type(found["b"]) is torch.Tensor
    assert not found["b"].requires_grad
    assert found["b"].data_ptr() == found["a"].data_ptr() + 8


def test_nothing_in_the_file_is_called(tmp_path):
    trace = tmp_path / "trace"
    Restoring.trace = trace
    found = inert({"a": Dangerous(trace), "b": Restoring(), "c": 1}, tmp_path)
    assert found.value == {"c": 1}
    assert not trace.exists()
    torch.load(tmp_path / "file.pt", weights_only=False)  # which is what it would do
    assert trace.exists()


@pytest.mark.parametrize("harmful", [os.system, eval, os.remove])
def test_a_file_that_was_made_to_harm_is_called_so(harmful, tmp_path):
    torch.save({"a": harmful}, tmp_path / "evil.pt")
    with pytest.raises(
        ValueError, match=r"evil\.pt names (posix|builtins)\.\w+, which no checkpoint needs: it was made to run"
    ):
        load_inert(tmp_path / "evil.pt")


def test_a_pickled_module_is_its_state_dict(tmp_path):
    module = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3)), nn.GELU())
    module.register_buffer("passing", torch.zeros(2), persistent=False)
    found = inert(module, tmp_path).value
    wanted = module.state_dict()
    assert list(found) == list(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_what_is_in_a_file_can_be_named_without_loading_it(tmp_path):
    torch.save({"a": Path("x"), "b": torch.zeros(1)}, tmp_path / "file.pt")
    assert names_in(tmp_path / "file.pt") == ("pathlib.PosixPath",)


def test_a_pickle_of_another_program_is_no_file_of_torch(tmp_path):
    (tmp_path / "file.pt").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="Expected input to be a checkpoint returned by torch"):
        names_in(tmp_path / "file.pt")
