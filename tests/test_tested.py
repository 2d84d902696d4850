"""The test of a model: every window once, in order, whatever the batches were."""

import numpy as np
import pytest
import torch

from statewise.tested import WindowsOfTest


def batch(first, rows):
    """Windows whose prediction is their number and whose target is 0, one of which was never observed."""
    prediction = torch.arange(first, first + rows, dtype=torch.float64).reshape(-1, 1, 1)
    return prediction, torch.zeros_like(prediction), prediction != 2


def test_predictions_come_in_the_order_of_the_windows_and_padding_is_dropped():
    tested = WindowsOfTest(1)
    tested.begin(None)
    for places, rows in ((range(3, 5), 2), (range(3), 4), (range(5, 5), 1)):
        tested.add(places, *batch(places.start, rows))
    predictions, errors = tested.conclude()
    assert predictions.flatten().tolist() == [0, 1, 2, 3, 4]
    assert errors["mse"].item() == (0 + 1 + 9 + 16) / 4
    assert "mse_original_units" not in errors


def test_errors_in_original_units_are_scaled_window_by_window():
    tested = WindowsOfTest(1)
    tested.begin(np.array([[1.0], [2.0], [3.0], [4.0]]))
    tested.add(range(1, 4), *batch(1, 3))
    _, errors = tested.conclude()
    assert errors["mae"].item() == (1 + 3) / 2
    assert errors["mae_original_units"].item() == (1 * 2 + 3 * 4) / 2
    assert errors["mse_original_units_per_target"].tolist() == [(4 + 144) / 2]


def test_a_second_test_forgets_the_first():
    tested = WindowsOfTest(1)
    for _ in range(2):
        tested.begin(None)
        tested.add(range(2), *batch(0, 2))
        assert tested.seen == 2
        predictions, errors = tested.conclude()
        assert len(predictions) == 2
        assert errors["mse"].item() == 0.5
    assert tested.seen == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_stay_float64_whatever_the_model_is(dtype):
    tested = WindowsOfTest(1).to(dtype)
    tested.begin(None)
    prediction, target, observed = batch(0, 2)
    tested.add(range(2), prediction.to(dtype), target.to(dtype), observed)
    assert tested.conclude()[1]["mse"].dtype == torch.float64
