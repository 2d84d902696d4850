"""Patterns and contracts become names."""

import torch
from torch import nn

from statewise.health.declared import Declared, resolve
from statewise.health.parameters import take_inventory


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.A, self.table = nn.Parameter(torch.ones(2)), torch.ones(2)

    def health_contract(self) -> dict[str, tuple[str, ...]]:
        return {"trainable": ("A", "B"), "constants": ("table",), "intended": ("graph-cut",)}


class Task(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"core": nn.Linear(2, 2), "ssm": Layer()})


def declared(**patterns: list[str]) -> Declared:
    return resolve(take_inventory(Task(), [], frozenset()), ["model.ssm.table"], **patterns)


def test_a_pattern_names_parameters_with_or_without_the_tasks_prefix() -> None:
    names = {"model.core.weight", "model.core.bias"}
    for pattern in ("model.core.*", "core.*", "core", "model.core", "*core*"):
        assert declared(frozen=[pattern]).frozen == names, pattern


def test_a_pattern_that_matches_nothing_is_kept_with_the_nearest_name() -> None:
    (miss,) = declared(frozen=["coer.*"]).unmatched
    assert (miss.key, miss.pattern, miss.nearest) == ("health.frozen", "coer.*", "core")
    assert declared(constants=["nothing_like_it"]).unmatched[0].nearest is None


def test_contracts_are_read_relative_to_their_module() -> None:
    known = declared()
    assert known.trainable == {"model.ssm.A", "model.ssm.B"}
    assert known.constants == {"model.ssm.table"}
    assert known.accepts("graph-cut", ["model.ssm.A"])
    assert not known.accepts("graph-cut", ["model.core.weight"])
    assert not known.accepts("unused", ["model.ssm.A"])


def test_a_constant_may_be_named_though_it_holds_brackets() -> None:
    inventory = take_inventory(Task(), [], frozenset())
    assert resolve(inventory, ["bag['in'][0]"], constants=["bag['in'][0]"]).constants >= {"bag['in'][0]"}


def test_a_contract_may_exempt_parameters_from_weight_decay() -> None:
    class Exempts(Layer):
        def health_contract(self) -> dict[str, tuple[str, ...]]:
            return {"no_weight_decay": ("A",)}

    module = nn.ModuleDict({"ssm": Exempts()})
    assert resolve(take_inventory(module, [], frozenset()), []).no_weight_decay == {"ssm.A"}


def test_marks_on_tensors_are_read_as_hints() -> None:
    module = Task()
    module.model["core"].weight._no_weight_decay = True
    module.model["core"].bias._optim = {"lr": 1e-4, "weight_decay": None}
    hints = {fact.name: dict(fact.hints) for fact in take_inventory(module, [], frozenset()).parameters if fact.hints}
    assert hints == {"model.core.weight": {"weight_decay": 0.0}, "model.core.bias": {"lr": 1e-4}}


def test_a_misspelt_end_of_a_name_finds_the_nearest_end() -> None:
    assert declared(frozen=["*.wieght"]).unmatched[0].nearest == "weight"
