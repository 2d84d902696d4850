"""`statewise checkpoint`: what a person types, what is printed, and the exit code."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from statewise import cli
from statewise.runs import load_run


@pytest.fixture
def statewise():
    def typed(*arguments):
        return CliRunner().invoke(cli.app, ["checkpoint", *(str(argument) for argument in arguments)])

    return typed


@pytest.fixture
def two_files(tmp_path):
    """A network before and after a training that forgot one layer."""
    torch.manual_seed(0)
    before = {**nn.Linear(2, 3).state_dict(), "frozen": torch.ones(2), "steps": torch.tensor(1)}
    after = {**before, "weight": before["weight"] * 1.5, "bias": before["bias"] * 1.1, "steps": torch.tensor(2)}
    torch.save(before, tmp_path / "a.pt")
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in after.items()}, "epoch": 3}, tmp_path / "b.pt")
    return tmp_path / "a.pt", tmp_path / "b.pt"


def test_inspect_of_a_run_prints_its_best_checkpoint(train, statewise):
    run = train().folder
    result = statewise("inspect", run)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith(f"file              {run / 'checkpoints' / 'best.ckpt'}, ")
    assert any(line.startswith("kind              checkpoint of statewise 0.") for line in lines)
    assert "model             dense_ssm on LTI, 64-true" in lines
    assert any(line.startswith("position          ") and line.endswith("10 optimiser steps") for line in lines)
    assert any(line.startswith("model.ssm_0.A") and "[4, 4]" in line for line in lines)
    assert lines[-1].startswith("in all            12 tensors, ")
    found = json.loads(statewise("inspect", run / "checkpoints" / "last.ckpt", "--json").output)
    assert [row["name"] for row in found["parameters"]][4] == "model.ssm_0.A"


def test_inspect_names_what_is_not_finite_and_fails(statewise, tmp_path):
    torch.save({"w": torch.tensor([1.0, float("nan")]), "v": torch.ones(1)}, tmp_path / "w.pt")
    result = statewise("inspect", tmp_path / "w.pt")
    assert result.exit_code == 1
    assert "1 not finite" in result.output
    assert result.output.splitlines()[-1] == "not finite        w"


def test_diff_says_on_top_what_did_not_move_and_fails(two_files, statewise):
    result = statewise("diff", *two_files)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == (
        "1 of 3 parameters is equal to the bit: frozen; the others moved, by 10 % (bias) to 50 % (weight) of their norm"
    )
    row = next(line for line in lines if line.startswith("weight"))
    assert row.split()[:5] == ["weight", "[3,", "2]", "50", "%"]
    assert any(line.startswith("frozen") and line.rstrip().endswith("equal to the bit") for line in lines)


def test_diff_is_content_where_everything_moved_that_was_meant_to(two_files, statewise):
    result = statewise("diff", *two_files, "--constant", "frozen")
    assert result.exit_code == 0
    assert result.output.startswith("all 2 parameters moved, by 10 % (bias) to 50 % (weight) of their norm")
    assert "equal to the bit, constant" in result.output


def test_diff_can_expect_that_nothing_differs(two_files, statewise):
    assert statewise("diff", *two_files, "--expect", "equal").exit_code == 1
    weights = torch.load(two_files[0])
    torch.save({"model": weights}, two_files[1])
    assert statewise("diff", *two_files, "--expect", "equal").exit_code == 0
    assert statewise("diff", *two_files).exit_code == 1


def test_diff_of_one_run_says_what_its_training_never_touched(train, statewise):
    outcome = train("fault=frozen_A", "health=off")
    assert outcome.code == 0, outcome.err
    result = statewise("diff", outcome.folder)
    assert result.exit_code == 1
    assert result.output.startswith("1 of 12 parameters is equal to the bit: ssm_0.A; the others moved, by ")
    assert f"beginning of {outcome.folder}, drawn again from seed=0" in result.output
    assert json.loads(statewise("diff", outcome.folder, "--json").output)["b"].endswith("best.ckpt")


def test_diff_of_one_run_needs_its_data(train, statewise, tmp_path):
    rows = np.random.default_rng(0).standard_normal((200, 2))
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="a,b", comments="")
    small = ["data=file", "data.path=rows.csv", "data.window=8", "model.d_model=4", "trainer.max_epochs=1", "health=off"]
    run = train(*small, "logger=csv", "report=false", tiny=False).folder
    (tmp_path / "rows.csv").unlink()
    result = statewise("diff", run)
    assert result.exit_code == 2, result.output
    assert "data.path: no file" in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_diff_for_a_program_is_json(two_files, statewise):
    found = json.loads(statewise("diff", *two_files, "--json").output)
    assert found["all_moved"] is False
    assert {row["name"]: row["equal"] for row in found["parameters"]} == {
        "weight": False,
        "bias": False,
        "frozen": True,
        "steps": False,
    }


def test_a_difference_of_many_rows_shows_what_stands_still_and_both_ends(tmp_path, statewise):
    a = {f"layers.{number}.w": torch.ones(2) for number in range(60)}
    b = {name: tensor * (1 + number / 100) for number, (name, tensor) in enumerate(a.items())}
    torch.save(a, tmp_path / "a.pt")
    torch.save(b, tmp_path / "b.pt")
    result = statewise("diff", tmp_path / "a.pt", tmp_path / "b.pt")
    rows = [line.split()[0] for line in result.output.splitlines() if line.startswith("layers.")]
    assert rows == [f"layers.{number}.w" for number in [*range(11), *range(50, 60)]]
    assert "39 more that moved: --all shows them" in result.output
    everything = statewise("diff", tmp_path / "a.pt", tmp_path / "b.pt", "--all").output
    assert sum(line.startswith("layers.") for line in everything.splitlines()) == 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "nothing.ckpt"], "there is no file"),
        (["inspect", "nothing"], "does not exist"),
        (["diff", "a.pt", "a.pt"], "was given twice"),
        (["diff", "a.pt", "b.pt", "--expect", "same"], "--expect must be one of moved, equal, got 'same'"),
        (["migrate", "a.pt"], "does not say of which configuration it is"),
        (["migrate", "a.pt", "data=file"], "data.path has no value: give one with data.path=VALUE"),
        (["migrate", "a.pt", "data=file", "data.path=none.csv"], "none.csv"),
        (["export", "nothing", "--to", "m.safetensors"], "does not exist"),
        (["export", "nothing", "--to", "m.pt"], "the end of --to must be one of .safetensors, got '.pt'"),
        (["export", "nothing", "--to", "m.safetensors", "--names", "hf"], "--names must be one of origin, got 'hf'"),
        (["import", "a.pt", "--to", "new"], "not safetensors"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(arguments, message, two_files, statewise, monkeypatch):
    monkeypatch.chdir(two_files[0].parent)
    result = statewise(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_an_unwritable_place_is_exit_code_1(two_files, statewise, train):
    run = train("experiment=origin", "model.expand=2").folder
    (two_files[0].parent / "file").write_text("")
    result = statewise("export", run, "--to", two_files[0].parent / "file" / "m.safetensors")
    assert result.exit_code == 1
    assert result.output.startswith("a file could not be read or written: ")


def test_weights_go_out_come_back_and_predict(train, statewise, tmp_path):
    run = train("experiment=origin", "model.expand=2").folder
    out = tmp_path / "model.safetensors"
    result = statewise("export", run, "--to", out, "--names", "origin")
    assert result.exit_code == 0, result.output
    assert "exported          10 parameters, " in result.output
    assert ", float64" in result.output
    result = statewise("import", out, "--to", tmp_path / "back")
    assert result.exit_code == 0, result.output
    assert f"predict with      statewise predict {tmp_path / 'back'} --data FILE" in result.output
    assert load_run(tmp_path / "back").best is not None
    assert statewise("diff", run, out, "--expect", "equal").exit_code == 0
    save_file(load_file(out), tmp_path / "bare.safetensors")
    assert statewise("import", tmp_path / "bare.safetensors", "--to", tmp_path / "bare").exit_code == 2
    assert statewise("import", tmp_path / "bare.safetensors", "--to", tmp_path / "bare", "--run", run).exit_code == 0


def test_the_default_model_is_refused_by_the_options_in_the_way(train, statewise, tmp_path):
    result = statewise("export", train().folder, "--to", tmp_path / "m.safetensors")
    assert result.exit_code == 2
    assert (
        "the original cannot express model.residual=true (false), model.activation=gelu (none), model.glu=true" in result.output
    )
    assert not (tmp_path / "m.safetensors").exists()


def test_migrate_tells_what_it_did(train, statewise, tmp_path):
    run = train().folder
    weights = torch.load(run / "checkpoints" / "best.ckpt")["state_dict"]
    torch.save({f"module.{name}": tensor for name, tensor in weights.items()}, tmp_path / "ddp.pt")
    result = statewise("migrate", tmp_path / "ddp.pt", "--run", run)
    assert result.exit_code == 0, result.output
    assert "12 of 12 names had prefixes, as module.model.input_proj.weight" in result.output
    assert result.output.splitlines()[-1] == f"written to        {tmp_path / 'ddp-migrated.ckpt'}"
    assert statewise("diff", tmp_path / "ddp.pt", tmp_path / "ddp-migrated.ckpt", "--expect", "equal").exit_code == 0


def test_numbers_of_a_table_are_finite_or_null(statewise, tmp_path):
    torch.save({"w": torch.zeros(2)}, tmp_path / "a.pt")
    torch.save({"w": torch.tensor([np.inf, 1.0])}, tmp_path / "b.pt")
    result = statewise("diff", tmp_path / "a.pt", tmp_path / "b.pt", "--json")
    assert json.loads(result.output)["parameters"][0]["relative"] is None
    assert "not finite in B: w" in json.loads(result.output)["verdict"]
