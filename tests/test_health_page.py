"""The health card of report.html: what was found, when, how the blocks moved, and which checks did not run."""

import numpy as np
import pytest

from statewise import health_page, report, runs

MESSAGE = "`ssm_0.A` gets no gradient: it cannot learn; remove <detach>. Intended: health.frozen=[ssm_0.A]"
FINDING = {"id": "graph-cut", "severity": "error", "step": 3, "parameters": ["ssm_0.A"], "message": MESSAGE, "evidence": {}}


def point(step, since, ratio, norm):
    return {
        "step": step,
        "since_start": {"model.ssm_0": since, "model.output_proj": 1.0},
        "update_ratio": {"model.ssm_0": ratio, "model.output_proj": 0.5},
        "gradient_norm": {"model.ssm_0": norm, "model.output_proj": 2.0},
        "share_moving": 1.0,
    }


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "2025-03-01" / "10-00-00"
    (path / ".hydra").mkdir(parents=True)
    (path / ".hydra" / "config.yaml").write_text("seed: 7\n")
    return path


def card(folder, health, **summary):
    runs.write_json(folder / runs.HEALTH, {"verdict": "healthy", "findings": [], "checks": [], **health})
    given = {"status": "ok", "model": "m", "data": "d", "seed": 0, "steps": 10, "health": health, **summary}
    runs.write_json(folder / runs.SUMMARY, runs.summarise(**given))
    return health_page.health_card(runs.load_run(folder))


def test_a_finding_is_told_in_its_parts_with_its_step_and_parameters_escaped(folder):
    text = card(folder, {"verdict": "error", "findings": [FINDING]})
    assert '<span class="badge bad">error</span><b>graph-cut</b> <span class="muted">step 3</span>' in text
    assert "<code>ssm_0.A</code> gets no gradient: it cannot learn; remove &lt;detach&gt;." in text
    assert '<p class="muted">Intended: health.frozen=[ssm_0.A]</p>' in text
    assert '<p class="muted names">ssm_0.A</p>' in text
    assert 'figure id="findings"' in text


def test_a_finding_before_the_first_update_says_so_and_has_no_time_line_where_no_step_was_made(folder):
    text = card(folder, {"verdict": "error", "findings": [{**FINDING, "step": 0}]}, steps=0)
    assert "before the first update" in text
    assert "<figure" not in text


def test_many_parameters_are_counted_not_listed(folder):
    names = [f"block.{i}.weight" for i in range(100)]
    text = card(folder, {"verdict": "error", "findings": [{**FINDING, "parameters": names}]})
    assert "block.23.weight and 76 more</p>" in text


def test_a_healthy_run_has_no_finding_and_shows_how_the_blocks_moved(folder):
    text = card(folder, {"movement": [point(1, 0.1, 0.01, 1.0), point(2, 0.2, None, 3.0)]})
    assert "No finding." in text
    assert 'figure id="movement"' in text


def test_readings_are_those_of_all_points_and_the_distance_is_the_last():
    names, panels = health_page.block_readings([point(1, 0.1, 0.01, 1.0), point(2, 0.2, None, 3.0)])
    since, ratio, norm = panels.values()
    assert names == ["ssm_0", "output_proj"]
    np.testing.assert_array_equal(since, [[0.2], [1.0]])
    np.testing.assert_array_equal(ratio, [[0.01, np.nan], [0.5, 0.5]])
    np.testing.assert_array_equal(norm, [[1.0, 3.0], [2.0, 2.0]])


def test_of_very_many_blocks_the_stillest_are_shown_in_the_order_of_the_model():
    since = {f"block_{i:03d}": float(i % 100) for i in range(200)}
    values = dict.fromkeys(since, 0.1)
    names, _ = health_page.block_readings([{"since_start": since, "update_ratio": values, "gradient_norm": values}])
    assert names == [f"block_{i:03d}" for i in [*range(30), *range(100, 130)]]


def test_checks_that_did_not_run_say_why(folder):
    checks = [{"name": "graph-cut", "ran": True, "why": ""}, {"name": "dead-state", "ran": False, "why": "no state here"}]
    text = card(folder, {"checks": checks})
    assert "1 of 2 checks ran" in text
    assert "<td>dead-state</td><td>no state here</td>" in text


def test_a_run_that_was_broken_on_purpose_says_so_first_and_an_unhealthy_one_begins_with_its_health(folder):
    card(folder, {"verdict": "error", "findings": [FINDING]}, status="unhealthy", fault={"name": "x", "what": "G1: <cut>."})
    text = report.build_report(folder).read_text(encoding="utf-8")
    places = [text.index(part) for part in ("broken on purpose: fault=x <span>G1: &lt;cut&gt;.", "Training health", "Result")]
    assert places == sorted(places)
    card(folder, {}, status="ok")
    text = report.build_report(folder).read_text(encoding="utf-8")
    assert "on purpose" not in text
    assert text.index("Result") < text.index("Training health")
