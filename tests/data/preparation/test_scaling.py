import io
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.preparation import scaling
from statewise.data.preparation.scaling import StandardScaler, mean_and_deviation


def fitted(values, usable=None, codes=None, **how) -> StandardScaler:
    values = np.asarray(values, dtype=float)
    usable = np.ones(values.shape, dtype=bool) if usable is None else usable
    codes = np.zeros(len(values), dtype=np.int64) if codes is None else np.asarray(codes)
    names = [f"x{i}" for i in range(values.shape[1])]
    offsets = np.searchsorted(codes, np.arange(len(how.get("series", " ")) + 1))
    return StandardScaler().fit(values, usable, offsets, names, **how)


def test_scaled_values_have_mean_0_and_deviation_1():
    values = np.random.default_rng(0).normal([3.0, -200.0], [0.5, 40.0], (500, 2))
    codes = np.zeros(500, dtype=np.int64)

    scaled = fitted(values).transform(values, codes)

    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-13)
    np.testing.assert_allclose(scaled.std(axis=0), 1, rtol=1e-13)


def test_only_usable_values_count():
    values = np.array([[1.0], [3.0], [1e9], [np.nan], [5.0]])
    usable = np.array([[True], [True], [False], [False], [True]])

    scaler = fitted(values, usable)

    assert scaler.mean.tolist() == [[3.0]]
    assert scaler.scale[0, 0] == pytest.approx(np.std([1.0, 3.0, 5.0]), rel=1e-15)


def constant_and_nearly_constant() -> np.ndarray:
    noise = np.random.default_rng(1).normal(size=(1000, 2))
    return np.stack([np.full(1000, 5.0), 1e-9 * noise[:, 0], 1e6 + 1e-4 * noise[:, 1]], axis=1)


def test_a_constant_column_becomes_zeros_and_a_warning_names_it(caplog):
    with caplog.at_level(logging.WARNING):
        scaler = fitted(constant_and_nearly_constant())
    scaled = scaler.transform(constant_and_nearly_constant(), np.zeros(1000, dtype=np.int64))

    assert not scaled[:, 0].any()
    assert scaler.constant == ("x0",)
    assert "column x0 does not vary" in caplog.text
    assert "x1" not in caplog.text


def test_tiny_variation_is_scaled_beside_zero_and_beside_a_large_mean():
    values = constant_and_nearly_constant()
    codes = np.zeros(1000, dtype=np.int64)
    scaler = fitted(values)
    scaled = scaler.transform(values, codes)

    assert np.abs(scaled).max() < 10
    np.testing.assert_allclose(scaled[:, 1:].std(axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose(scaler.inverse(scaled, codes), values, rtol=1e-12)


def test_variation_within_the_rounding_of_a_column_is_none():
    one_bit = np.where(np.arange(100) % 2, 1e6, np.nextafter(1e6, 2e6))
    tenth = np.full(1000, 0.1)

    assert mean_and_deviation(one_bit)[1] == 0.0
    assert mean_and_deviation(tenth) == (0.1, 0.0)


@pytest.mark.parametrize("size", [1e-200, 1e200], ids=str)
def test_squares_neither_overflow_nor_vanish(size):
    values = size * np.array([1.0, 2.0, 3.0])

    mean, deviation = mean_and_deviation(values)

    assert mean == pytest.approx(2 * size)
    assert deviation == pytest.approx(np.sqrt(2 / 3) * size)


def test_each_series_has_its_own_scale():
    values = np.concatenate([np.random.default_rng(i).normal(10.0**i, 2.0**i, (50, 1)) for i in range(3)])
    codes = np.repeat([0, 1, 2], 50)

    scaler = fitted(values, codes=codes, series=("a", "b", "c"), per_series=True)
    scaled = scaler.transform(values, codes)

    for code in range(3):
        np.testing.assert_allclose(scaled[codes == code].mean(), 0, atol=1e-12)
        np.testing.assert_allclose(scaled[codes == code].std(), 1, rtol=1e-12)
    np.testing.assert_allclose(scaler.inverse(scaled, codes), values, rtol=1e-14)


def test_a_series_without_training_values_has_the_scale_of_all():
    values = np.arange(10.0)[:, None]
    usable = np.arange(10)[:, None] < 6

    scaler = fitted(values, usable, np.repeat([0, 1], [6, 4]), series=("old", "new"), per_series=True)

    assert scaler.without_values == ("x0 of series new",)
    assert scaler.mean[:, 0].tolist() == [2.5, 2.5, 2.5]
    assert scaler.scale[2, 0] == scaler.scale[0, 0]


def test_a_column_that_is_constant_in_one_series_only_is_named_with_it():
    values = np.array([[1.0], [1.0], [2.0], [3.0]])

    scaler = fitted(values, codes=[0, 0, 1, 1], series=("flat", "live"), per_series=True)

    assert scaler.constant == ("x0 of series flat",)


def test_a_column_without_any_training_value_is_refused():
    with pytest.raises(ValueError, match="column 'x1' has no observed value in the training part"):
        fitted(np.ones((4, 2)), np.array([[True, False]] * 4))


def test_the_state_is_plain_and_comes_back_bit_for_bit_with_weights_only():
    values = np.random.default_rng(2).normal(size=(30, 2))
    scaler = fitted(values, codes=np.repeat([0, 1], 15), series=("a", "b"), per_series=True)
    file = io.BytesIO()
    torch.save(scaler.state_dict(), file)
    file.seek(0)

    loaded = StandardScaler()
    loaded.load_state_dict(torch.load(file, weights_only=True))

    assert loaded.equals(scaler)
    assert loaded.per_series


def test_series_are_matched_by_name_and_unknown_ones_have_the_scale_of_all():
    values = np.concatenate([np.random.default_rng(i).normal(10.0**i, 1, (20, 1)) for i in range(2)])
    scaler = fitted(values, codes=np.repeat([0, 1], 20), series=("a", "b"), per_series=True)

    other = scaler.for_series(("b", "z"))

    assert other.mean[:, 0].tolist() == [scaler.mean[0, 0], scaler.mean[2, 0], scaler.mean[0, 0]]


@given(
    st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=40),
    st.floats(1e-6, 1e6),
)
@settings(max_examples=50, deadline=None)
def test_the_inverse_gives_back_every_value(numbers, factor):
    values = factor * np.array(numbers)[:, None]
    codes = np.zeros(len(values), dtype=np.int64)
    scaler = fitted(values)

    scaled = scaler.transform(values, codes)

    assert np.isfinite(scaled).all()
    assert np.abs(scaled).max() <= np.sqrt(len(values)) * 1.001 or scaler.constant
    np.testing.assert_allclose(scaler.inverse(scaled, codes), values, rtol=1e-12, atol=1e-12 * np.abs(values).max())


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e12])
def test_a_column_of_several_blocks_has_the_statistics_of_one(monkeypatch, offset):
    random = np.random.default_rng(2)
    values = offset + random.normal(size=1000)
    usable = random.random(1000) < 0.7
    usable[128:256] = False  # a block without any
    whole = mean_and_deviation(values[usable])

    monkeypatch.setattr(scaling, "BLOCK", 64)
    mean, deviation = scaling.mean_and_deviation_of(values, usable)

    assert mean == pytest.approx(whole[0], rel=1e-15)
    assert deviation == pytest.approx(whole[1], rel=1e-14)
    assert scaling.mean_and_deviation_of(np.full(1000, offset), usable) == (offset, 0.0)
    assert scaling.mean_and_deviation_of(values, np.zeros(1000, dtype=bool)) is None


def test_a_column_is_scaled_the_same_in_blocks_and_at_once(monkeypatch):
    values = np.random.default_rng(3).normal(size=(300, 1))
    codes = np.repeat([0, 1, 2], 100)
    scaler = fitted(values, codes=codes, series=["a", "b", "c"], per_series=True)
    monkeypatch.setattr(scaling, "_IN_CACHE", 37)
    out = torch.empty(300, dtype=torch.float64)
    assert scaler.transform_column(0, values[:, 0], np.array([0, 100, 200, 300]), out) == 0
    np.testing.assert_array_equal(out.numpy(), scaler.transform(values, codes)[:, 0])
