"""The weights a run began with are drawn again to the bit."""

import pytest
import torch

from statewise import assembly
from statewise.checkpoints.beginning import beginning_of

SMALL = ["model.d_model=4", "model.n_layers=1", "seed=7", "trainer.limit_train_batches=2", "trainer.max_epochs=1"]
QUIET = ["health=off", "logger=csv", "report=false"]


@pytest.mark.parametrize("data", [["lti"], ["air_quality", "data.batch_size=2048"], ["market", "data.bars=400"]])
def test_they_are_those_of_the_run(data, train, monkeypatch):
    first = []
    build = assembly.build_model

    def noting(*arguments):
        model = build(*arguments)
        first.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return model

    with monkeypatch.context() as patch:
        patch.setattr(assembly, "build_model", noting)
        outcome = train(*SMALL, *QUIET, f"data={data[0]}", *data[1:], tiny=False)
    assert outcome.code == 0, outcome.err
    found = beginning_of(outcome.folder)
    assert found.kind == f"beginning of {outcome.folder}, drawn again from seed=7"
    assert all(torch.equal(tensor, first[0][name]) for name, tensor in found.tensors.items())


def test_a_resumed_run_began_where_its_first_parent_did(run, train):
    child = train(f"resume={run}", "trainer.max_epochs=2", tiny=False).folder
    grandchild = train(f"resume={child}", "trainer.max_epochs=3", tiny=False)
    assert grandchild.code == 0, grandchild.err
    first, last = beginning_of(run), beginning_of(grandchild.folder)
    assert last.kind == first.kind
    assert all(torch.equal(tensor, last.tensors[name]) for name, tensor in first.tensors.items())
