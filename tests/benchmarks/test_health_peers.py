"""The comparison with other tools: its arithmetic, its rules on curves, and each tool that is installed on a real fit."""

import importlib
import json
import math
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Imports a benchmark as a script would: it finds its neighbours. The number of threads is put back."""
    threads = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module
    torch.set_num_threads(threads)


@pytest.fixture
def peers(load):
    return load("health_cases.peers")


@pytest.fixture
def health_peers(load):
    return load("health_peers")


def verdict(health_peers, case="G1", healthy=False, kinds=(), names_cause=False, raised=False, tool="a"):
    return health_peers.Verdict(tool, case, "mlp", 0, healthy, tuple(kinds), None, names_cause, raised)


def kinds(peers, losses):
    return [said.kind for said in peers.judge_curve(losses)]


def test_a_falling_curve_is_left_alone(peers):
    assert kinds(peers, [1 / (1 + step) for step in range(100)]) == []


def test_a_curve_that_does_not_fall_a_spike_and_no_number_are_said(peers):
    flat = [1.0 + 0.01 * math.sin(step) for step in range(100)]
    assert kinds(peers, flat) == ["no-decrease"]
    falling = [10.0 - 0.05 * step for step in range(100)]
    falling[60] = 100.0
    assert [(said.kind, said.step) for said in peers.judge_curve(falling)] == [("spike", 60)]
    falling[60:] = [math.nan] * 40
    assert [(said.kind, said.step) for said in peers.judge_curve(falling)] == [("non-finite", 60)]


def test_words_that_differ_in_numbers_only_are_the_same(peers):
    def said(text):
        return peers.Said("overfit", text, 0).key

    assert said("the loss falls from 1.25 to 9.1e-03") == said("the loss falls from 3.5 to 0.2")
    assert said("core gets no gradient") != said("head gets no gradient")


def test_shares_count_exceptions_in_their_own_columns_only(health_peers):
    faulty = [
        verdict(health_peers, kinds=["x"], names_cause=True),
        verdict(health_peers, kinds=["y"]),
        verdict(health_peers, raised=True),
        verdict(health_peers),
    ]
    healthy = [verdict(health_peers, "T1", True, ["x"]), verdict(health_peers, "T2a", True, raised=True)]
    assert health_peers.totals([*faulty, *healthy]) == {
        "cells": 4,
        "found": 0.5,
        "found_or_raised": 0.75,
        "names_cause": 0.5,
        "healthy_runs": 2,
        "flagged": 0.5,
        "flagged_or_raised": 1.0,
    }


def test_all_tools_together_say_what_one_of_them_says(health_peers):
    verdicts = [
        verdict(health_peers, "G1", kinds=["x"], tool="a"),
        verdict(health_peers, "G1", kinds=["y"], names_cause=True, tool="b"),
        verdict(health_peers, "O1", tool="a"),
        verdict(health_peers, "O1", tool="b"),
    ]
    row = health_peers.totals(health_peers.together(verdicts))
    assert (row["cells"], row["found"], row["names_cause"]) == (2, 0.5, 1.0)


def test_every_cause_that_a_tool_may_name_is_in_the_catalogue(peers, load):
    known = set(load("health_cases.faults").FAULTS)
    assert {fault for tool in peers.TOOLS for causes in tool.causes.values() for fault in causes} <= known


def test_a_tool_that_is_not_there_says_so_and_why(peers):
    absent = peers.Tool("absent", "no-such-tool", "1.0", peers.LossCurve, {})
    assert absent.missing() == "not installed (No module named 'no_such_tool')"
    other = peers.Tool("other", "torch", "0.0.1", peers.LossCurve, {})
    assert "0.0.1 is what the table is of" in other.missing()


def test_the_curve_shows_gradients_without_a_number_and_no_hidden_layer(health_peers, tmp_path, capsys):
    arguments = ["--tools", "loss curve", "--families", "mlp", "--quick", "--only", "R1,N4", "--jobs", "1"]
    assert health_peers.main([*arguments, "--json", str(tmp_path / "peers.json")]) == 0
    written = json.loads((tmp_path / "peers.json").read_text())
    found = {run["case"]: run["kinds"] for run in written["runs"]}
    assert found == {"R1": [], "N4": ["non-finite"], "N4@10": ["non-finite"]}
    assert "loss curve" in capsys.readouterr().out


def test_an_unknown_family_or_tool_is_one_line(health_peers, capsys):
    with pytest.raises(SystemExit):
        health_peers.main(["--families", "resnet"])
    assert "family resnet is none of mlp, conv, attention, ssm" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        health_peers.main(["--tools", "pytest"])
    assert "tool pytest is none of loss curve" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "fault", "kind"),
    [
        ("torch-audit", "G5", "TA500"),
        ("guardtower", "O1", "OPT-001"),
        ("torchtest2", "O1", "optimizer_coverage"),
        ("gradsnitch", "N4", "GS001"),
        ("torcheck", "G1", "unchanged"),
    ],
)
def test_a_tool_that_is_installed_sees_what_it_is_known_for(health_peers, peers, load, name, fault, kind):
    tool = next(tool for tool in peers.TOOLS if tool.name == name)
    if (why := tool.missing()) is not None:
        pytest.skip(f"{name} {why}")
    case = load("health_cases.cases").Faulty(fault, "mlp", 0)
    said = health_peers.on_faulty(tool, case)
    assert kind in said.kinds
