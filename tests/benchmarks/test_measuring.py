"""The benchmarks' rows, tables and command lines; nothing is timed here."""

import ast
import importlib.util
import json
from pathlib import Path

import pytest
from rich.console import Console

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# all.py runs the others, selection.py trains models and draws a figure, the two of health count findings, the loop faults.
COUNTING = {"health_score", "health_peers", "kill_loop"}
MEASURING = sorted({path.stem for path in BENCHMARKS.glob("*.py")} - {"measuring", "all", "selection"} - COUNTING)


def load(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def benchmarks(monkeypatch):
    """Loads a benchmark as a script would be: it finds its neighbours. The number of threads is put back."""
    import torch

    threads = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield load
    torch.set_num_threads(threads)


@pytest.fixture
def measuring(benchmarks):
    return benchmarks("measuring")


def row(measuring, value=4.0, bar=3.5, better="higher"):
    return measuring.Row("D1", "float64", "T=60", "naive loop", value, bar, better)


@pytest.mark.parametrize(
    ("value", "bar", "better", "ok", "margin"),
    [
        (4.0, 2.0, "higher", True, 2.0),
        (2.0, 2.0, "higher", True, 1.0),
        (1.0, 2.0, "higher", False, 0.5),
        (1.0, 2.0, "lower", True, 2.0),
        (2.0, 2.0, "lower", True, 1.0),
        (4.0, 2.0, "lower", False, 0.5),
        (4.0, None, "higher", None, None),
    ],
)
def test_a_row_knows_whether_it_meets_its_bar(measuring, value, bar, better, ok, margin):
    assert (row(measuring, value, bar, better).ok, row(measuring, value, bar, better).margin) == (ok, margin)


def test_a_direction_that_does_not_exist_is_refused(measuring):
    with pytest.raises(ValueError, match="better must be higher or lower, got faster"):
        row(measuring, better="faster")


def test_rows_are_written_with_ok_and_read_back(measuring, tmp_path, capsys):
    rows = [row(measuring), row(measuring, value=1.0), row(measuring, bar=None)]
    asked = []

    def measure(quick):
        asked.append(quick)
        return rows

    measuring.main("What is measured.\n\nMore.", measure, ["--quick", "--json", str(tmp_path / "rows.json")])
    written = json.loads((tmp_path / "rows.json").read_text())
    assert written[0] == {
        "id": "D1",
        "dtype": "float64",
        "size": "T=60",
        "against": "naive loop",
        "value": 4.0,
        "bar": 3.5,
        "better": "higher",
        "ok": True,
    }
    assert [entry["ok"] for entry in written] == [True, False, None]
    assert measuring.from_json((tmp_path / "rows.json").read_text()) == rows
    assert asked == [True]
    assert "What is measured." in capsys.readouterr().out
    measuring.main("What is measured.", measure, [])
    assert asked == [True, False]


def test_the_table_shows_every_row_and_says_which_fall_short(measuring):
    rows = [row(measuring), row(measuring, 1.0, 2.0), row(measuring, 1.2e-15, 1e-12, "lower"), row(measuring, bar=None)]
    console = Console(width=120)
    with console.capture() as capture:
        console.print(measuring.table(rows))
    lines = [line for line in capture.get().splitlines() if "naive loop" in line]
    cells = [[cell.strip() for cell in line.strip("│").split("│")][-3:] for line in lines]
    assert cells == [["4", ">= 3.5", "yes"], ["1", ">= 2", "NO"], ["1.2e-15", "<= 1e-12", "yes"], ["4", "-", "-"]]


def test_the_fastest_round_counts_and_variants_take_turns(measuring):
    calls = []
    times = measuring.fastest({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, repeats=2)
    assert "".join(calls) == "ab" + 3 * "aabb"
    assert set(times) == {"a", "b"}


def test_peak_memory_sees_what_is_freed_before_the_end(measuring):
    def run():
        held = bytearray(64 * measuring.MIB)
        held[:] = b"x" * len(held)
        del held

    assert measuring.peak_memory(run) >= 60 * measuring.MIB


@pytest.mark.parametrize("name", MEASURING)
def test_every_benchmark_can_be_measured_and_has_the_common_command_line(benchmarks, name):
    module = benchmarks(name)
    assert callable(module.measure)
    tree = ast.parse((BENCHMARKS / f"{name}.py").read_text())
    guarded = [ast.unparse(node) for node in tree.body if isinstance(node, ast.If)]
    assert guarded == ["if __name__ == '__main__':\n    main(__doc__, measure)"]
    assert module.main.__module__ == "measuring"


def test_every_benchmark_is_among_those_that_run_together(benchmarks):
    # C1 is measured beside H1: health_overhead.py runs callbacks.py.
    assert sorted([*benchmarks("all").BENCHMARKS, "callbacks"]) == MEASURING


def test_the_summary_has_one_line_for_each_question_and_counts_what_falls_short(benchmarks, measuring):
    every = benchmarks("all")
    rows = [row(measuring, value) for value in (4.0, 3.0, 9.0)] + [row(measuring, bar=None)]
    rows += [measuring.Row("D2", None, "T=60", "products", 1.0, 1.3, "lower")]
    head, rule, first, second = every.summary(rows).splitlines()
    assert (head.split(" | ")[0], set(rule)) == ("| id", set("|-"))
    assert first.startswith("| D1 |")
    assert first.endswith("| 3 | float64, T=60, against naive loop | 3 | >= 3.5 | NO (1 of 3 fall short) |")
    assert second.endswith("| 1 | T=60, against products | 1 | <= 1.3 | yes |")


def test_the_document_has_every_row_and_the_readme_changes_between_its_marks_only(benchmarks, measuring):
    every = benchmarks("all")
    rows = [
        row(measuring),
        row(measuring, bar=None),
        measuring.Row("growth", "float32", "dense T=256", "ms", 1.0, None, "lower"),
    ]
    text = every.document(rows, ["mamba2"], "make bench")
    every_row = text[text.index("## All rows") :]
    assert "| float64 | T=60 | naive loop | 4 | >= 3.5 | yes |" in every_row
    assert "| float64 | T=60 | naive loop | 4 | - | - |" in every_row
    assert "| float32 | dense T=256 | ms | 1 |" in text
    assert "**mamba2 failed and has no rows.**" in text
    assert "torch 2" in text
    marked = f"before\n{every.BEGIN}\nold\n{every.END}\nafter\n"
    renewed = every.into_readme(marked, "| new |", "make bench")
    assert renewed.startswith(f"before\n{every.BEGIN}\n")
    assert renewed.endswith(f"| new |\n{every.END}\nafter\n")
    assert "old" not in renewed
    assert every.into_readme("no marks", "| new |", "make bench") == "no marks"
