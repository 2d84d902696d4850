"""TensorBoard on a folder of runs, started as `make dashboard` starts it and looked at in a browser."""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statewise.callbacks.dashboard import LAYOUT

ANY = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]


@pytest.fixture(scope="module")
def outputs(fit: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that ended well, diverged, and were refused."""
    folder = tmp_path_factory.mktemp("board")
    assert fit(folder / "good", "report=false") == 0
    assert fit(folder / "diverged", "report=false", "optimizer.lr=1e9") == 1
    assert json.loads((folder / "diverged" / "summary.json").read_text())["status"] == "diverged"
    assert fit(folder / "refused", "report=false", "data.window=100000") == 2
    return folder


@pytest.fixture(scope="module")
def address(outputs: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(outputs), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = ""
        for line in server.stderr:
            said += line
            if found := re.search(r" at (http://\S+?)/? ", line):
                yield found.group(1)
                break
        server.terminate()
        assert "at http" in said, said


def asked(address: str, path: str, question: dict[str, Any] | None = None) -> Any:
    data = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(f"{address}/data/{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_the_runs_and_their_metrics_are_found(browser: Any, address: str) -> None:
    browser.open(f"{address}/#timeseries")
    groups = ("figures", "final", "grad_norm", "health", "spectral_radius", "test", "train", "val")
    browser.wait_for("good", "diverged", "refused", *groups, "/best_validation")
    tags = asked(address, "plugin/scalars/tags")
    assert {"train/loss", "val/mse", "test/mse", "lr"} <= set(tags["good"])
    assert "epoch" not in tags["good"]
    assert {"train/loss", "final/failed"} <= set(tags["diverged"])


def test_the_charts_stand_in_order_and_each_has_curves(browser: Any, address: str) -> None:
    browser.open(f"{address}/#custom_scalars")
    titles = [title for charts in LAYOUT.values() for title in charts]
    lines = [line.strip() for line in browser.wait_for(*LAYOUT, *titles, "good").splitlines()]
    places = [lines.index(name) for name in LAYOUT]
    assert places == sorted(places)
    tags = asked(address, "plugin/scalars/tags")["good"]
    for charts in LAYOUT.values():
        for title, (_, patterns) in charts.items():
            assert all(any(re.match(pattern, tag) for tag in tags) for pattern in patterns), title


def test_every_run_stands_among_the_hyperparameters_with_what_differs_first_and_its_final_figures(
    browser: Any, address: str
) -> None:
    columns = asked(address, "plugin/hparams/experiment", {"experimentName": ""})
    assert [found["name"] for found in columns["hparamInfos"][:3]] == ["data.window", "optimizer.lr", "data"]
    assert [found["name"]["tag"] for found in columns["metricInfos"][:5]] == [
        "final/best_validation", "final/failed", "final/steps", "final/test_mse", "final/train_loss",
    ]  # fmt: skip
    question = {"startIndex": 0, "sliceSize": 100, "allowedStatuses": ANY, "colParams": []}
    groups = asked(address, "plugin/hparams/session_groups", question)["sessionGroups"]
    found = {group["name"]: group["sessions"][0]["status"] for group in groups}
    assert found == {"good": "STATUS_SUCCESS", "diverged": "STATUS_FAILURE", "refused": "STATUS_FAILURE"}
    final = {group["name"]: {value["name"]["tag"]: value["value"] for value in group["metricValues"]} for group in groups}
    assert final["good"]["final/test_mse"] == final["good"]["test/mse"] > 0
    assert [final[name]["final/failed"] for name in ("good", "diverged", "refused")] == [0, 1, 1]
    figures = [value for values in final.values() for tag, value in values.items() if tag.startswith("final/")]
    assert all(isinstance(value, int | float) for value in figures)  # "NaN" and "Infinity" are texts

    browser.open(f"{address}/#hparams")
    browser.wait_for("good", "diverged", "refused", "optimizer.lr", "data.window", "final/test_mse")
