"""The healthy set-ups: complete, repeatable, and left alone by training health (a few of them; the score runs all)."""

import importlib
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Imports a module of the cases as a benchmark would."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def set_ups(load):
    look_alikes, ordinary = load("health_cases.look_alikes"), load("health_cases.ordinary")
    return {set_up.id: set_up for set_up in (*ordinary.SET_UPS, *look_alikes.SET_UPS, *look_alikes.EXTRA)}


def test_every_look_alike_of_the_specification_is_there_and_six_ordinary_set_ups(set_ups):
    numbers = {int(key[1:].rstrip("abcde")) for key in set_ups if key.startswith("T")}
    assert numbers == set(range(1, 25))
    assert [key for key in set_ups if key.startswith("S")] == ["S1", "S2", "S3", "S4", "S5", "S6"]


def test_no_id_stands_for_two_set_ups(load):
    look_alikes, ordinary = load("health_cases.look_alikes"), load("health_cases.ordinary")
    ids = [set_up.id for set_up in (*ordinary.SET_UPS, *look_alikes.SET_UPS, *look_alikes.EXTRA)]
    assert len(ids) == len(set(ids))


def test_a_family_that_is_left_out_has_its_reason(set_ups, load):
    families = set(load("health_cases.families").FAMILIES)
    for set_up in set_ups.values():
        assert set(set_up.not_for) < families
        assert all(set_up.not_for.values())


@pytest.mark.parametrize("key", ["T2a", "T20", "X23"])
def test_a_set_up_is_the_same_for_the_same_seed_and_another_for_another(set_ups, load, key):
    family = load("health_cases.families").FAMILIES["mlp"]
    first, again, other = (set_ups[key].build(family, seed).task.state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_what_a_set_up_freezes_is_what_a_careful_user_would_declare(set_ups, load):
    family = load("health_cases.families").FAMILIES["mlp"]
    run = set_ups["T4"].build(family, 0)
    assert run.contract == {"frozen": [name for name, p in run.task.named_parameters() if not p.requires_grad]}
    assert "net.head.weight" not in run.contract["frozen"]


@pytest.mark.parametrize("key", ["T7b", "T12a", "T21a", "X2", "X10", "X37"])
def test_a_look_alike_that_has_been_flagged_once_is_left_alone(set_ups, load, key):
    fitting = load("health_cases.fitting")
    run = set_ups[key].build(load("health_cases.families").FAMILIES["mlp"], 0)
    outcome = fitting.fit(run, 0, steps=40)
    assert outcome.error is None
    assert [(f["id"], f["severity"]) for f in outcome.findings if f["severity"] != "info"] == []
