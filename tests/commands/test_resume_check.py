"""The command that proves exact resume says equal where it is, and names the first number that is not the same."""

import itertools
import re

import pytest

from statewise.commands.resume_check import main

DATA = ["data=lti", "data.steps=400", "data.window=16", "data.batch_size=64"]
MODEL = ["model.d_model=4", "model.d_state=4", "model.n_layers=1", "model.dropout=0.2"]
EXACT = [*DATA, *MODEL, "scheduler.warmup_steps=2", "callbacks.spectral_projection.growth_every_n_steps=2"]
PLACES = ["inside an epoch", "last batch of an epoch", "end of an epoch", "best validation"]


@pytest.fixture
def check(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*overrides, **options):
        code = main(list(overrides), **options)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def rows(out):
    """Place, accumulation, workers and result of every row."""
    found = (re.fullmatch(r"(\S.*?)(?:, step \d+)? +(\d+) +(\d+)  (\S.*)", line.rstrip()) for line in out.splitlines())
    return [match.groups() for match in found if match]


@pytest.mark.parametrize(
    "overrides",
    [
        [*MODEL, "scheduler=onecycle", "trainer.accumulate_grad_batches=3"],
        [
            "model=gru",
            "model.d_model=4",
            "model.dropout=0.2",
            "scheduler=cosine",
            "data.sampling=contiguous",
            "data.batch_size=4",
        ],
        [*EXACT, "model.d_state=64", "trainer.val_check_interval=2", "trainer.checkpoint_every_n_steps=2"],
    ],
    ids=["accumulation and one cycle", "carried state and cosine", "validation inside an epoch and a large state"],
)
def test_a_resumed_run_is_the_uninterrupted_one_wherever_the_checkpoint_was_taken(overrides, check):
    code, out, err = check(*DATA, *overrides)
    accumulation = "3" if "trainer.accumulate_grad_batches=3" in overrides else "1"
    assert rows(out) == [(place, accumulation, "0", "equal") for place in PLACES], out + err
    assert out.rstrip().endswith("verdict: equal, to the bit")
    assert code == 0


def test_workers_see_the_same_batches_in_a_resumed_run(check):
    code, out, err = check(*EXACT, "data.num_workers=2", steps=8, stop_at=3)
    assert rows(out) == [("after step 3", "1", "2", "equal")], out + err
    assert code == 0


@pytest.mark.slow
def test_every_row_of_the_matrix_is_equal(check):
    code, out, err = check(*DATA, *MODEL, "scheduler=onecycle", matrix=True)
    expected = [(p, a, w, "equal") for (a, w), p in itertools.product(itertools.product("13", "02"), PLACES)]
    assert rows(out) == expected, out + err
    assert code == 0


def test_what_is_drawn_past_the_seeds_shows_as_the_first_difference(check, tmp_path, monkeypatch):
    (tmp_path / "unseeded.py").write_text(
        "import lightning as L, torch\n"
        "DRAWN = torch.Generator()\n"
        "class Noise(L.Callback):\n"
        "    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):\n"
        "        batch.inputs.add_(torch.randn(batch.inputs.shape, generator=DRAWN, dtype=batch.inputs.dtype))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    code, out, err = check(*EXACT, "+callbacks.noise={_target_: unseeded.Noise}", steps=6, stop_at=2)
    [(_, _, _, result)] = rows(out)
    assert re.fullmatch(r"weights model\.input_proj\.weight\[0, 0\] is -?0\.\d+ and not -?0\.\d+", result), out + err
    assert out.rstrip().endswith("verdict: different")
    assert code == 1


def test_what_a_callback_forgets_shows_in_the_numbers_it_logs(check, tmp_path, monkeypatch):
    (tmp_path / "forgetful.py").write_text(
        "import lightning as L\n"
        "class Count(L.Callback):\n"
        "    seen = 0\n"
        "    def on_train_batch_end(self, trainer, pl_module, *rest):\n"
        "        self.seen += 1\n"
        "        pl_module.log('seen', float(self.seen))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    code, out, err = check(*EXACT, "+callbacks.count={_target_: forgetful.Count}", steps=6, stop_at=2)
    [(_, _, _, result)] = rows(out)
    assert re.fullmatch(r"metrics\.csv row\[\d+\] seen is 1\.0 and not 3\.0", result), out + err
    assert code == 1


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        (["resume=run"], {}, "statewise resume-check stops and resumes by itself: leave out resume"),
        (["-m", "seed=0,1"], {}, "statewise resume-check stops and resumes by itself: leave out -m"),
        ([], {"steps": 5, "stop_at": 5}, "--stop-at below --steps; got 5 and 5"),
        ([*EXACT, "model.d_state=0"], {}, "could not run: model.d_state must be at least 1, got 0"),
        ([*EXACT, "trainer.max_epochs=1"], {}, "could not run: 1 epochs and 5 steps are too few"),
        ([*EXACT], {"stop_at": 99}, "there is no step 99 to stop after"),
    ],
)
def test_what_cannot_be_checked_is_said_in_one_line(overrides, options, message, check):
    code, _, err = check(*overrides, **options)
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert code == 2


def test_nothing_is_left_behind(check, tmp_path):
    check(*EXACT, steps=4, stop_at=2)
    assert list(tmp_path.iterdir()) == []
