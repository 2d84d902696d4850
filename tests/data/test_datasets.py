from pathlib import Path

import numpy as np
import polars as pl
import pytest

from statewise.data.datasets import LTI, AirQuality, File, Market
from statewise.metrics import errors
from statewise.models.baselines import last_value

SHARED = Path(__file__).parents[3] / "shared" / "data"


def test_air_quality_has_the_figures_of_its_description():
    module = AirQuality()
    module.setup()

    assert module.feature_names == module.target_names == ("pm2.5", "DEWP", "TEMP", "PRES", "Iws")
    assert (module.window, module.horizon, module.batch_size) == (60, 1, 128)
    assert "dropped 24 leading row(s): missing values in pm2.5" in module.notes
    assert any(note.startswith("pm2.5: 2,043 of 43,800 values missing (4.7%)") for note in module.notes)
    assert [part.rows for part in module.prepared.parts.values()] == [30_660, 4_380, 8_760]
    assert module.target_positions("test")[1][0, 0] == np.datetime64("2014-01-01T00", "ns")
    # The last value again, over observed targets: .0323 where filled values are targets and enter the scale as well.
    inputs, targets, observed = (np.concatenate(part) for part in zip(*module.evaluation_batches("test"), strict=True))
    error = np.where(observed[:, 0, 0], inputs[:, -1] - targets[:, 0, 0], np.nan)
    assert np.nanmean(error**2, axis=0).mean() == pytest.approx(0.03221, abs=5e-6)


def test_lti_knows_its_system_and_its_best_possible_error():
    module = LTI(steps=4000, window=32)
    module.setup()

    assert module.feature_names == ("u0", "u1", "y0", "y1", "y2", "y3")
    assert module.target_inputs == (2, 3, 4, 5)
    assert module.system.A.shape == (8, 8)
    targets = module.last_step("test")[0].numpy()
    best = np.mean((module.optimal("test") - targets) ** 2)
    before = module.to_original("test", targets)[:-1, 0] / module.target_scale("test")[1:]
    persistence = np.mean((before - module.to_original("test", targets)[1:, 0] / module.target_scale("test")[1:]) ** 2)
    assert best < 0.02 * persistence
    original = (module.optimal("test") - targets) * module.target_scale("test")[:, None]
    assert np.mean(original**2) == pytest.approx(0.0163, rel=0.1)


def test_lti_takes_its_system_from_its_own_seed():
    systems = []
    for seed, system_seed in ((0, 0), (1, 0), (0, 1)):
        module = LTI(steps=400, window=8, seed=seed, system_seed=system_seed)
        module.setup()
        systems.append(module.system.A)
    assert np.array_equal(systems[0], systems[1])
    assert not np.array_equal(systems[0], systems[2])


def test_market_is_scaled_per_series_and_its_best_forecast_has_the_planted_strength():
    module = Market(ic=0.3, bars=20_000)
    module.setup()

    assert module.feature_names == ("log_return", "log_range", "log_volume")
    assert module.target_names == ("log_return",)
    assert module.target_inputs == (0,)
    assert not module.targets_are_levels
    assert module.planted_ic == 0.3
    assert module.scaler.per_series
    targets, observed = module.last_step("test")
    assert observed.all()
    measured = np.corrcoef(module.optimal("test")[:, 0, 0], targets[:, 0, 0].numpy())[0, 1]
    assert measured == pytest.approx(0.3, abs=4 / np.sqrt(len(targets)))
    assert sum("time gaps" in note for note in module.notes) == 1


def test_no_market_window_crosses_a_night():
    module = Market(bars=2000)
    module.setup()

    starts = module.prepared.part("train").starts
    times = module.prepared.rows.times
    assert (np.ptp(times[starts[:, None] + np.arange(17)], axis=1) == np.timedelta64(16, "m")).all()


@pytest.fixture
def folder(tmp_path):
    rows = np.arange(100.0)
    stamps = np.datetime64("2024-01-01", "ns") + np.arange(100) * np.timedelta64(1, "h")
    pl.DataFrame({"time": stamps, "open": rows, "close": rows + 1, "volume": rows % 7}).write_csv(tmp_path / "bars.csv")
    return tmp_path


def test_a_file_is_all_numeric_columns_by_its_path_alone(folder):
    module = File(path="bars.csv", window=4, folder=str(folder))
    module.setup()

    assert module.feature_names == module.target_names == ("open", "close", "volume")
    assert module.target_positions("test")[1][0, 0] == np.datetime64("2024-01-04T08", "ns")


def test_features_and_targets_of_a_file_can_be_named(folder):
    module = File(path="bars.csv", window=4, folder=str(folder), features=["volume", "open"], targets=["close"])
    module.setup()
    assert (module.feature_names, module.target_names) == (("volume", "open"), ("close",))

    alone = File(path="bars.csv", window=4, folder=str(folder), features=["open"])
    alone.setup()
    assert alone.target_names == ("open",)

    every = File(path="bars.csv", window=4, folder=str(folder), targets=["close"])
    every.setup()
    assert every.feature_names == ("open", "close", "volume")


@pytest.mark.parametrize("key", ["features", "targets"])
def test_an_unknown_column_is_refused_with_the_nearest_name(folder, key):
    module = File(path="bars.csv", window=4, folder=str(folder), **{key: ["clsoe"]})
    with pytest.raises(ValueError, match=r"clsoe.*close"):
        module.setup()


def test_a_relative_path_means_the_folder_of_the_command(folder, monkeypatch):
    monkeypatch.chdir(folder)
    module = File(path="bars.csv", window=4)
    module.setup()

    assert module.n_windows("train") == 66


def test_several_series_in_one_file_are_found_and_never_mixed(tmp_path):
    rows = np.arange(60.0)
    pl.DataFrame(
        {"time": np.tile(np.arange(60), 2) * 3600 + 1_700_000_000, "symbol": ["B"] * 60 + ["A"] * 60, "x": [*rows, *(-rows)]}
    ).write_csv(tmp_path / "two.csv")
    module = File(path=str(tmp_path / "two.csv"), window=4)
    module.setup()

    assert module.scaler.per_series
    assert module.n_windows("train") == 2 * (42 - 4)
    names, _ = module.target_positions("train")
    targets = module.to_original("train", module.last_step("train")[0].numpy())[:, 0, 0]
    assert (targets[names == "B"] > 0).all()
    assert (targets[names == "A"] < 0).all()


def test_a_file_with_a_header_only_is_refused_before_anything_is_built(tmp_path):
    (tmp_path / "empty.csv").write_text("time,close\n")

    with pytest.raises(ValueError, match=r"empty\.csv") as raised:
        File(path="empty.csv", window=16, folder=str(tmp_path)).setup()
    assert "\n" not in str(raised.value)


def test_a_file_shorter_than_a_window_names_rows_window_and_horizon(folder):
    with pytest.raises(ValueError, match=r"train part: it has 70 rows, data.window=128 and data.horizon=1 need 129"):
        File(path="bars.csv", window=128, folder=str(folder)).setup()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data files are not here")
def test_ett_by_its_path_alone_has_the_published_error_of_the_last_value():
    module = File(path=str(SHARED / "ett" / "ETTh1.csv"), window=96, horizon=96, split=[8640, 2880, 2880])
    module.setup()
    truth, observed = module.last_step("test")
    found = errors(last_value(module), truth, observed)
    assert (round(float(found["mse"]), 4), round(float(found["mae"]), 4)) == (1.2944, 0.7132)
    assert len(truth) == 2880 - 96 + 1
