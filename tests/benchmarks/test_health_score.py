"""The score of training health: its table is complete, its arithmetic right, and a few cells end as they must."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def cases():
    """The package of the cases, found as a script in benchmarks/ finds it. The number of threads is put back."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        from health_cases import cases

        yield cases
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def command(cases):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OMP_NUM_THREADS", "TQDM_DISABLE"):
            patch.setenv(name, "1")
        spec = importlib.util.spec_from_file_location("health_score", BENCHMARKS / "health_score.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def expected(cases):
    from health_cases import expected

    return expected


@pytest.fixture(scope="module")
def scoring(cases):
    from health_cases import scoring

    return scoring


def finding(id="graph-cut", severity="error", step=0, parameters=("net.inp.weight",)):
    return {"id": id, "severity": severity, "step": step, "parameters": list(parameters)}


def test_the_table_has_every_fault_and_a_reason_for_each_cell_that_does_not_apply(expected):
    assert set(expected.ROWS) == set(expected.FAULTS)
    assert len(expected.cells()) == 48 * 4
    applied = [cell for cell in expected.cells() if expected.expected(*cell, 0) is not None]
    assert len(applied) == 178
    assert set(expected.cells()) - set(applied) == set(expected.NOT_APPLICABLE)
    assert all(len(reason.split()) > 3 for reason in expected.NOT_APPLICABLE.values())


def test_every_id_that_the_table_accepts_is_a_finding_of_training_health(expected):
    from statewise.health.rules import KINDS

    rows = [expected.expected(fault, family, variant) for fault, family in expected.cells() for variant in (0, 1)]
    assert {id for row in rows if row for id in row.ids} <= {kind.id for kind in KINDS}


def test_only_what_the_catalogue_asks_to_wait_for_may_come_later_than_five_steps(expected):
    late = {
        (fault, variant)
        for fault in expected.FAULTS
        for variant in (0, 1)
        if expected.expected(fault, "ssm", variant) and expected.expected(fault, "ssm", variant).step > 5
    }
    assert late == {("G5", 0), ("G5", 1), ("O12", 0), ("O12", 1), ("O13", 1)}


def test_what_lies_before_the_core_is_named_without_what_lies_in_it(expected):
    from health_cases.families import FAMILIES

    named = expected.upstream(FAMILIES["mlp"].build(0))
    assert named == {"net.inp", "net.inp.weight", "net.inp.bias", "net.norm", "net.norm.weight", "net.norm.bias", "net.core"}


def test_a_finding_that_the_healthy_twin_shows_as_well_is_no_news(scoring):
    shared, own = finding(), finding(parameters=("net.core.weight",))
    assert scoring.news([shared, own], [shared], "warning") == [own]
    assert scoring.news([finding(severity="info")], [], "warning") == []
    assert scoring.news([finding(severity="info")], [], "info") == [finding(severity="info")]


@pytest.mark.parametrize(
    ("named", "affected", "right"),
    [
        (["net.inp.weight"], {"net.inp", "net.inp.*"}, True),
        (["net.inp", "net.inp.bias"], {"net.inp", "net.inp.*"}, True),
        (["net.inp.weight", "net.head.weight"], {"net.inp", "net.inp.*"}, False),
        (["net.core.layers[0].weight"], {"net.core.layers[[]*"}, True),
        ([], {"*"}, False),
        ([], None, True),
    ],
)
def test_a_name_is_right_where_all_that_is_named_is_affected(scoring, named, affected, right):
    assert scoring.names_rightly(named, affected) is right


def test_a_run_is_judged_by_the_first_finding_of_its_report(scoring, expected):
    row = expected.Row(("graph-cut",), step=5)
    findings = [finding("zero-gradient", step=16), finding("graph-cut", step=3)]
    judged = scoring.judge(row, 10, {"net.inp.*"}, findings, [])
    assert (judged["id"], judged["step"], judged["right_cause"]) == ("zero-gradient", 16, False)
    assert (judged["late"], judged["right_parameter"], judged["shown"]) == (True, True, 2)
    assert scoring.judge(row, 10, None, findings[1:], [])["late"] is False
    assert scoring.judge(row, 0, None, [], [])["found"] is False


def test_shares_count_what_applies_what_was_found_and_what_can_be_named(scoring):
    def cell(**values):
        return scoring.Cell("G1", "mlp", 0, True, **values)

    cells = [
        scoring.Cell("N5", "mlp", 0, False),
        cell(found=False, nameable=True),
        cell(found=True, right_cause=True, right_parameter=True, nameable=True),
        cell(found=True, right_cause=False, right_parameter=False, nameable=True, late=True),
        cell(found=True, right_cause=True, right_parameter=True, nameable=False),
    ]
    runs = [scoring.Healthy("S1", "mlp", seed, []) for seed in range(3)]
    runs.append(scoring.Healthy("S1", "mlp", 3, [finding(severity="warning"), finding(severity="error")]))
    assert scoring.totals(cells, runs) == {
        "cells": 4,
        "found": 0.75,
        "right_cause": 2 / 3,
        "right_parameter": 0.5,
        "late": 1,
        "healthy_runs": 4,
        "healthy_error": 1,
        "healthy_warn": 1,
    }


def test_a_target_is_met_on_its_side_of_the_bound(scoring):
    targets = {target.key: target for target in scoring.TARGETS}
    values = {"found": 0.98, "healthy_warn": 2, "healthy_runs": 240, "late": 1}
    assert targets["found"].met(values)
    assert not targets["found"].met({"found": 0.97})
    assert targets["healthy_warn"].met(values)
    assert not targets["healthy_warn"].met(values | {"healthy_warn": 3})
    assert not targets["late"].met(values)


def test_a_fault_that_changes_nothing_makes_the_score_fail(command, scoring):
    idle = scoring.Cell("O1", "mlp", 1, True, found=True, equal_weights=True)
    lines = command.complaints([idle, idle], [])
    assert lines == ["the fault leaves the trained weights equal to the healthy twin's: O1 mlp 1, O1 mlp 1"]
    assert command.fails(lines)
    assert not command.fails(command.complaints([], [scoring.Healthy("S1", "mlp", 0, [finding(severity="warning")])]))


def test_an_unknown_case_is_refused_in_one_line(command):
    with pytest.raises(SystemExit, match="case G99 is none of G1, G2"):
        command.main(["--only", "G99"])


@pytest.mark.parametrize("fault", ["G1", "R1", "O1", "O4@10", "N2", "B7"])
def test_a_fault_is_found_and_named_in_a_real_fit(cases, fault):
    case, seed_two = cases.faulty_cases(["mlp"], [0, 1], [fault])[:2]
    for cell in (cases.run_faulty(case), cases.run_faulty(seed_two)):
        assert (cell.found, cell.right_cause, cell.right_parameter, cell.late) == (True, True, True, False), cell
        assert not cell.equal_weights
        assert not cell.note


@pytest.mark.parametrize("family", ["mlp", "ssm"])
def test_ordinary_runs_stay_quiet(cases, family):
    for set_up in ("S1", "S2"):
        run = cases.run_sound(cases.Sound(set_up, family, 0, steps=40, contract=family == "ssm"))
        assert run.findings == []
        assert not run.note


def test_the_command_writes_the_promised_keys(command, tmp_path, capsys):
    target = tmp_path / "score.json"
    code = command.main(["--families", "mlp", "--only", "R5,S1", "--quick", "--jobs", "1", "--json", str(target)])
    assert code == 0, capsys.readouterr().out
    score = json.loads(target.read_text())
    assert score["totals"] == {
        "cells": 2,
        "found": 1.0,
        "right_cause": 1.0,
        "right_parameter": 1.0,
        "late": 0,
        "healthy_runs": 1,
        "healthy_error": 0,
        "healthy_warn": 0,
    }
    assert score["cells"][0] == {
        "fault": "R5",
        "family": "mlp",
        "seed": 0,
        "applicable": True,
        "found": True,
        "step": 0,
        "id": "frozen-by-mistake",
        "right_cause": True,
        "right_parameter": True,
    }
    assert score["healthy"] == [{"set_up": "S1", "family": "mlp", "seed": 0, "findings": []}]
    assert "one parameter frozen by mistake" in capsys.readouterr().out


def test_further_look_alikes_are_shown_and_counted_apart(command, tmp_path, capsys):
    target = tmp_path / "score.json"
    code = command.main(["--families", "mlp", "--only", "X3,X16", "--quick", "--jobs", "1", "--json", str(target)])
    shown = capsys.readouterr().out
    assert code == 0, shown
    score = json.loads(target.read_text())
    assert score["totals"]["healthy_runs"] == 0
    assert score["healthy"] == []
    assert score["further_look_alikes"]["totals"] == {"runs": 2, "flagged": 0}
    assert [run["set_up"] for run in score["further_look_alikes"]["healthy"]] == ["X3", "X16"]
    assert "batch norms frozen in evaluation mode" in shown
    assert "0 of 2" in shown


def test_a_flagged_further_look_alike_is_named_and_changes_no_total(command, cases, scoring):
    from health_cases import further

    quiet, loud = scoring.Healthy("X3", "mlp", 0, [], contract=False), scoring.Healthy("X3", "mlp", 1, [finding(step=7)])
    told = scoring.Healthy("X3", "mlp", 2, [finding(severity="info")])
    assert further.counted([quiet, loud, told]) == {"runs": 3, "flagged": 1}
    assert further.in_words(loud) == "mlp 1, declared: [yellow]error graph-cut at 7[/]"
    assert further.in_words(quiet) == "mlp 0: quiet"
    table = further.further_table([quiet, loud], cases.FURTHER)
    assert list(table.columns[2].cells) == ["mlp 1, declared: [yellow]error graph-cut at 7[/]\n1 quiet"]
    score = command.Score([], [], [], [], [quiet, loud], [quiet])
    assert score.with_contract["healthy_runs"] == score.with_contract["healthy_warn"] == 0
    assert score.as_dict()["without_contract"]["further_look_alikes"]["totals"] == {"runs": 1, "flagged": 0}
