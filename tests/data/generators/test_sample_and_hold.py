import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.datasets import SampleAndHold
from statewise.data.generators.sample_and_hold import best_linear_error, hold, sample_and_hold
from statewise.models.baselines import evaluate_baselines, floor
from statewise.summary import result_rows, verdict_on_result


def slowly_held(values: np.ndarray, marked: np.ndarray) -> list[float]:
    held, memory = [], 0.0
    for value, mark in zip(values, marked, strict=True):
        held.append(memory)
        memory = value if mark else memory
    return held


def ready(**options) -> SampleAndHold:
    module = SampleAndHold(**{"sequences": 50, "length": 12, "window": 12, **options})
    module.setup()
    return module


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_a_row_holds_the_value_at_the_latest_marker_before_it(seed, rows, rate):
    rng = np.random.default_rng(seed)
    values, marked = rng.standard_normal(rows), rng.random(rows) < rate
    np.testing.assert_array_equal(hold(values, marked), slowly_held(values, marked))


@given(st.integers(0, 1000), st.integers(1, 8), st.integers(2, 20), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_every_sequence_begins_with_a_marker_and_needs_nothing_before_it(seed, sequences, rows, rate):
    frame = sample_and_hold(seed, sequences=sequences, rows=rows, marker_rate=rate)
    value, marker, held = (frame[name].to_numpy().reshape(sequences, rows) for name in ("value", "marker", "held"))
    assert set(np.unique(marker)) <= {0.0, 1.0}
    assert (marker[:, 0] == 1).all()
    for i in range(sequences):
        np.testing.assert_array_equal(held[i, 1:], slowly_held(value[i], marker[i] == 1)[1:])
    assert frame.equals(sample_and_hold(seed, sequences=sequences, rows=rows, marker_rate=rate))
    assert not frame.equals(sample_and_hold(seed + 1, sequences=sequences, rows=rows, marker_rate=rate))


def test_the_values_are_standard_normal_and_markers_come_at_their_rate():
    frame = sample_and_hold(0, sequences=2_000, rows=101, marker_rate=0.05)
    value = frame["value"].to_numpy()
    marker = frame["marker"].to_numpy().reshape(2_000, 101)
    assert np.mean(value) == pytest.approx(0, abs=4 / np.sqrt(value.size))
    assert np.mean(value**2) == pytest.approx(1, abs=4 * np.sqrt(2 / value.size))
    assert np.mean(value**4) == pytest.approx(3, abs=4 * np.sqrt(96 / value.size))
    free = marker[:, 1:]  # a first row is always marked
    assert free.mean() == pytest.approx(0.05, abs=4 * np.sqrt(0.05 * 0.95 / free.size))
    assert abs(np.corrcoef(free.ravel(), value.reshape(2_000, 101)[:, 1:].ravel())[0, 1]) < 4 / np.sqrt(free.size)


def test_each_sequence_is_one_window_of_its_own():
    module = ready(split=[0.6, 0.2, 0.2])
    assert [module.n_windows(part) for part in ("train", "val", "test")] == [30, 10, 10]
    starts = np.concatenate([module.prepared.part(part).starts for part in ("train", "val", "test")])
    np.testing.assert_array_equal(starts, np.arange(50) * 13)
    times = module.prepared.rows.times[starts[:, None] + np.arange(13)]
    assert (np.ptp(times, axis=1) == np.timedelta64(12, "s")).all()


def test_a_border_inside_a_sequence_leaks_no_target_into_the_part_before_it():
    module = ready(split=[305, 95, 250], supervision="all")  # 305 rows are 23 sequences and 6 rows of the next
    assert [module.n_windows(part) for part in ("train", "val", "test")] == [23, 7, 20]
    observed = next(iter(module.val_dataloader())).observed[:, :, 0, 0]
    assert observed[0].tolist() == [False] * 5 + [True] * 7
    assert observed[1:].all()


def test_the_windows_of_a_longer_sequence_stay_inside_it():
    module = ready(length=12, window=4)
    starts = module.prepared.part("train").starts
    assert len(starts) == 35 * 9
    assert (starts % 13 + 4 < 13).all()


@pytest.mark.parametrize("horizon", [1, 3])
def test_the_targets_after_every_step_are_what_the_window_has_marked_up_to_it(horizon):
    module = ready(horizon=horizon, supervision="all", marker_rate=0.2)
    inputs, targets, observed = next(iter(module.test_dataloader()))
    assert observed.all()
    assert tuple(targets.shape[1:]) == (12, horizon, 1)
    scaler = module.scaler
    value, marker = (inputs[..., j].numpy() * scaler.scale[0, j] + scaler.mean[0, j] for j in (0, 1))
    told = targets[:, :, 0, 0].numpy() * scaler.scale[0, 2] + scaler.mean[0, 2]
    for i in range(len(value)):
        expected = slowly_held(np.append(value[i], 0.0), np.append(marker[i].round() == 1, False))[1:]
        np.testing.assert_allclose(told[i], expected, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_best_possible_error_is_exactly_zero_and_can_be_told(dtype):
    module = SampleAndHold(sequences=50, length=12, window=12)
    module.dtype = dtype
    module.setup()
    assert floor(module) == 0.0
    summary = {
        "model": "m",
        "test": {"mse": 0.1, "mae": 0.2},
        "baselines": {"linear": {"mse": 0.8, "mae": 0.7}},
        "floor": {"mse": 0.0},
    }
    assert {row.name: row.skill for row in result_rows(summary)}["best possible"] == 1.0
    assert "best baseline (linear, 0.80000)" in verdict_on_result(summary)


def test_no_linear_model_of_the_window_does_better_than_theory_says():
    module = ready(sequences=12_000, marker_rate=0.1)
    baselines = evaluate_baselines(module)
    assert baselines.results["last_value"] is baselines.results["zero"] is None
    found = baselines.results["linear"].mse * module.scaler.scale[0, 2] ** 2
    n = module.n_windows("test")
    assert found == pytest.approx(best_linear_error(0.1, 12), abs=4 * np.sqrt(2 / n))
    assert best_linear_error(0.05, 1) == best_linear_error(1.0, 12) == 0.0
    assert best_linear_error(0.05, 1_000) == pytest.approx(1 - 0.05 / 1.95, abs=1e-12)


def test_the_data_follow_their_own_seed_and_not_that_of_the_run():
    first, same, other = (ready(seed=s, system_seed=d).prepared.scaled for s, d in ((0, 0), (1, 0), (0, 1)))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sequences": 0}, "data.sequences must be at least 1, got 0"),
        ({"marker_rate": 1.1}, "data.marker_rate must be a probability between 0 and 1, got 1.1"),
        ({"marker_rate": float("nan")}, "data.marker_rate must be a probability between 0 and 1, got nan"),
        ({"length": 11}, "data.length must be at least data.window=12, got 11"),
    ],
)
def test_an_impossible_stream_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        ready(**wrong)


def test_a_run_on_it_says_how_far_it_is_from_the_best_possible(train):
    small = [
        "data.sequences=200",
        "data.length=16",
        "data.window=16",
        "model.d_model=4",
        "model.d_state=4",
        "trainer.max_epochs=1",
    ]
    outcome = train("data=sample_and_hold", *small, "task.supervision=all", "logger=csv", "report=false", tiny=False)
    assert outcome.code == 0, outcome.err
    assert outcome.summary["floor"] == {"mse": 0.0}
    assert "best possible" in outcome.out
    assert (outcome.folder / "predictions.parquet").is_file()
