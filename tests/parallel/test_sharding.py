"""Parameters that lie in two processes: the same run, the same file, the same findings as in one (two_shards.py)."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten_with_path

SCRIPT = Path(__file__).with_name("two_shards.py")
CHECKPOINTED = ("state_dict", "optimizer_states", "lr_schedulers", "callbacks")


@pytest.fixture(scope="session")
def cases() -> Any:
    """The script as a module: its cases, also for one process."""
    spec = importlib.util.spec_from_file_location("two_shards", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["two_shards"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def folder(cases: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes have gone through all cases, once; `one` holds what a single one left before that."""
    place = tmp_path_factory.mktemp("shards")
    (place / "one").mkdir()
    cases.ten_steps(place / "one")
    done = subprocess.run([sys.executable, str(SCRIPT), str(place)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    return place


@pytest.fixture
def in_two(folder: Path) -> Any:
    """What each of two processes knows at the end of a case."""

    def read(case: str) -> list[dict[str, Any]]:
        told = [json.loads((folder / f"{case}.{place}.json").read_text()) for place in range(2)]
        assert not any("traceback" in one for one in told), [one.get("traceback") for one in told]
        return told

    return read


@pytest.fixture(scope="session")
def in_one(cases: Any, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process alone comes to; each case once."""
    known: dict[str, dict[str, Any]] = {}
    place = tmp_path_factory.mktemp("alone")
    (place / "one").symlink_to(folder / "one")

    def run(case: str) -> dict[str, Any]:
        if case not in known:
            (place / case).mkdir()
            known[case] = cases.ALIKE[case](place / case)
        return known[case]

    return run


def furthest(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """The largest difference of any weight."""
    assert found.keys() == expected.keys()
    return max(float(np.abs(np.array(found[name]) - np.array(expected[name])).max()) for name in expected)


def findings(told: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    return [(finding["id"], finding["severity"], finding["parameters"]) for finding in told["health"]["findings"]]


TRAINED = ["dense_ssm", "diagonal_ssm", "mamba2", "gru", "nlinear", "accumulated", "recomputed", "streams", "direct", "zoh"]


@pytest.mark.parametrize("case", [*TRAINED, "lifted", "swallowed", "half_still", "all_still"])
def test_twenty_steps_in_two_processes_are_those_of_one(case: str, in_two: Any, in_one: Any) -> None:
    first, second = in_two(case)
    alone = in_one(case)
    assert first["losses"] == second["losses"]
    np.testing.assert_allclose(first["losses"], alone["losses"], rtol=0, atol=1e-9)
    assert first["weights"] == second["weights"]
    assert furthest(first["weights"], alone["weights"]) < 1e-9
    for name, value in alone["validation"].items():
        assert first["validation"][name] == second["validation"][name] == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("case", ["dense_ssm", "nlinear", "half_still"])
def test_gradient_norms_are_those_of_the_whole_gradient_in_every_process(case: str, in_two: Any, in_one: Any) -> None:
    first, second = in_two(case)
    alone = in_one(case)
    assert first["norms"] == second["norms"]
    assert first["norms"]["steps"] == alone["norms"]["steps"]
    assert first["norms"]["names"] == alone["norms"]["names"]
    np.testing.assert_allclose(first["norms"]["values"], alone["norms"]["values"], rtol=0, atol=1e-9)
    assert first["none"] == second["none"] == alone["none"]


@pytest.mark.parametrize("case", ["direct", "zoh", "lifted"])
def test_a_sharded_transition_is_projected_like_a_whole_one(case: str, in_two: Any, in_one: Any) -> None:
    first, second = in_two(case)
    radii = [(step, name) for step, name, _ in first["radii"]]
    alone = in_one(case)
    assert radii == [(step, name) for step, name, _ in alone["radii"]]
    values = [[radius for *_, radius in told["radii"]] for told in (first, alone)]
    np.testing.assert_allclose(values[0], values[1], rtol=0, atol=1e-9)
    assert max(values[0]) < 1.0
    assert second["radii"] == [], "the first process computes for all"


@pytest.mark.parametrize("case", TRAINED)
def test_a_healthy_sharded_run_has_no_findings(case: str, in_two: Any) -> None:
    for told in in_two(case):
        assert told["error"] == ""
        assert told["health"]["verdict"] == "healthy", findings(told)
        assert findings(told) == []


@pytest.mark.parametrize(
    ("case", "name", "parameters"),
    [
        ("swallowed", "update-lost-to-rounding", 18),
        ("all_still", "zero-gradient", 1),
        ("lifted", "lost-initialisation", 2),
        ("written_back", "written-back", 1),
        ("wrong_key", "not-in-optimizer", 1),
    ],
)
def test_a_fault_is_found_as_in_one_process_and_with_the_same_words(
    case: str, name: str, parameters: int, in_two: Any, in_one: Any
) -> None:
    first, second = in_two(case)
    alone = in_one(case)
    assert [finding["id"] for finding in first["health"]["findings"]] == [name]
    assert len(first["health"]["findings"][0]["parameters"]) == parameters
    assert first["health"] == second["health"]
    assert findings(first) == findings(alone)
    assert first["health"]["findings"][0]["message"] == alone["health"]["findings"][0]["message"]


def test_a_part_without_a_gradient_says_nothing_of_its_parameter(in_two: Any) -> None:
    first, second = in_two("half_still")
    norms = dict(zip(first["norms"]["names"], first["norms"]["values"][-1], strict=True))
    assert norms["ssm_0.A"] > 0
    assert findings(first) == findings(second) == []


@pytest.mark.parametrize("case", ["frozen", "frozen_ddp"])
def test_a_frozen_parameter_stops_all_processes_with_the_same_words(case: str, in_two: Any, in_one: Any) -> None:
    alone = in_one("frozen")
    assert alone["error"].startswith("UnhealthyTraining: step 0, frozen-by-mistake: `model.ssm_0.A`")
    for told in in_two(case):
        assert told["error"] == alone["error"]
        assert findings(told) == findings(alone)


def test_how_the_blocks_moved_is_what_one_process_writes_down(in_two: Any, in_one: Any) -> None:
    first, second = in_two("dense_ssm")
    alone = in_one("dense_ssm")["health"]["movement"]
    assert first["health"]["movement"] == second["health"]["movement"]
    for found, expected in zip(first["health"]["movement"], alone, strict=True):
        assert found["step"] == expected["step"]
        assert found["share_moving"] == expected["share_moving"]
        for key in ("since_start", "update_ratio", "gradient_norm"):
            assert found[key] == pytest.approx(expected[key], abs=1e-9)


def test_what_cannot_be_asked_of_parts_is_listed_as_not_asked(in_two: Any, in_one: Any) -> None:
    checks = {check["name"]: check for check in in_two("dense_ssm")[0]["health"]["checks"]}
    alone = {check["name"]: check for check in in_one("dense_ssm")["health"]["checks"]}
    silent = {name for name, check in checks.items() if not check["ran"] and alone[name]["ran"]}
    assert {"not-causal", "mixed-rows", "summed-loss"} <= silent
    assert all("the parameters are sharded over processes" in checks[name]["why"] for name in silent)
    assert {name for name, check in checks.items() if check["ran"]} >= {
        "frozen-by-mistake", "graph-cut", "zero-gradient", "update-lost-to-rounding", "written-back", "lost-initialisation",
    }  # fmt: skip


@pytest.mark.parametrize("case", ["from_one", "from_two"])
def test_a_run_goes_on_from_the_file_of_one_process_or_of_two(case: str, in_two: Any, in_one: Any) -> None:
    first, second = in_two(case)
    alone = in_one("from_one")
    assert len(alone["losses"]) == 20
    np.testing.assert_allclose(first["losses"], alone["losses"], rtol=0, atol=1e-9)
    assert furthest(first["weights"], alone["weights"]) < 1e-9
    assert first["weights"] == second["weights"]


def test_a_sharded_run_that_is_stopped_between_two_steps_goes_on_exactly(in_two: Any) -> None:
    for told in in_two("gone_on"):
        assert len(told["losses"]) > 3
        assert told["losses"] == told["whole_run"][-len(told["losses"]) :]
        assert told["weights"] == told["expected"]


def test_one_process_goes_on_from_the_file_of_two(cases: Any, folder: Path, tmp_path: Path, in_two: Any) -> None:
    (tmp_path / "ten").symlink_to(folder / "ten")
    (tmp_path / "alone").mkdir()
    alone = cases.gone_on("ten", tmp_path / "alone")
    np.testing.assert_allclose(alone["losses"], in_two("from_two")[0]["losses"], rtol=0, atol=1e-9)


def test_the_file_of_two_processes_holds_what_the_file_of_one_does(folder: Path) -> None:
    files = [torch.load(folder / place / "ten.ckpt", weights_only=True) for place in ("ten", "one")]
    assert files[0].keys() == files[1].keys()
    for key in CHECKPOINTED:
        found, expected = ({str(path): leaf for path, leaf in tree_flatten_with_path(file[key])[0]} for file in files)
        assert found.keys() == expected.keys(), key
        for path, leaf in expected.items():
            if isinstance(leaf, torch.Tensor):
                assert type(found[path]) is torch.Tensor, path
                torch.testing.assert_close(found[path], leaf, rtol=0, atol=1e-9, equal_nan=True)
            elif isinstance(leaf, float):
                assert found[path] == pytest.approx(leaf, abs=1e-9, nan_ok=True), path
            else:
                assert found[path] == leaf, path


def test_a_transition_is_equal_bit_for_bit_where_machines_compute_differently(in_two: Any) -> None:
    first, second = in_two("other_arithmetic")
    assert first["weights"] == second["weights"]
    assert first["losses"] == second["losses"]
    assert min(radius for *_, radius in first["radii"]) == pytest.approx(0.96, abs=1e-6), "it has acted"


def test_only_the_first_process_takes_eigenvalues(in_two: Any) -> None:
    first, second = in_two("other_arithmetic")
    assert first["calls"] > 0
    assert second["calls"] == 0


def test_all_processes_hear_that_a_transition_is_none(in_two: Any) -> None:
    for told in in_two("nan_in_A"):
        assert told["error"].startswith("Diverged: ssm_1.A is not finite after step 0, first seen in the spectral projection")


@pytest.mark.parametrize("case", ["spoilt", "spoilt_ddp"])
def test_a_loss_that_is_no_number_in_one_process_stops_all_and_is_named(case: str, in_two: Any) -> None:
    for told in in_two(case):
        assert told["error"].startswith("Diverged: the training loss is nan at step 4 (epoch 0, batch 3, process 1): lower")
        assert len(told["losses"]) == 3
        assert findings(told) == [], "a gradient that is NaN because of a loss that is"


def test_a_loss_that_leaves_no_trace_in_the_gradient_is_told_at_the_next_reading(in_two: Any) -> None:
    for told in in_two("spoilt_loss"):
        assert told["error"].startswith("Diverged: the training loss is inf at step 4 (epoch 0, batch 3, process 1): lower")
        assert len(told["losses"]) == 5
