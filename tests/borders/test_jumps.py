"""A jump is told from noise of many kinds, and what jumps is found."""

import numpy as np
import pytest

from statewise.borders.causes import Evidence
from statewise.borders.jumps import inner_rises, kept_places, read_border, recovered_after, recurs, same_order, usual_profile
from statewise.borders.verdict import Borders

EPOCHS = 25
NOISE = {
    "even": lambda chance, n: np.exp(0.1 * chance.standard_normal(n)),
    "heavy tails": lambda chance, n: np.exp(0.2 * chance.standard_t(3, n)),
    "wild batches now and then": lambda chance, n: np.exp(0.05 * chance.standard_normal(n) + 2.0 * (chance.random(n) < 0.01)),
    "a walk": lambda chance, n: np.exp(np.cumsum(0.02 * chance.standard_normal(n))),
    "a steep fall": lambda chance, n: np.exp(0.1 * chance.standard_normal(n)) * (0.05 + np.exp(-12.0 * np.arange(n) / n)),
    "mostly nothing": lambda chance, n: 0.01 + (chance.random(n) < 0.1) * chance.exponential(1.0, n),
    "below zero": lambda chance, n: chance.standard_normal(n) - 1.0,
}


def run(losses: np.ndarray, evidence: Evidence = Evidence()) -> Borders:  # noqa: B008  frozen
    borders = Borders()
    for epoch, row in enumerate(losses):
        borders.add(epoch + 1, row, evidence)
    return borders


@pytest.mark.parametrize("batches", [5, 12, 40, 160])
@pytest.mark.parametrize("noise", NOISE)
def test_noise_alone_never_jumps(noise: str, batches: int) -> None:
    for seed in range(4):
        losses = NOISE[noise](np.random.default_rng(seed), EPOCHS * batches).reshape(EPOCHS, batches)
        assert run(losses).jumps == 0


@pytest.mark.parametrize("batches", [12, 40, 160])
def test_a_first_batch_that_is_worse_in_every_epoch_is_found(batches: int) -> None:
    losses = NOISE["even"](np.random.default_rng(0), EPOCHS * batches).reshape(EPOCHS, batches)
    losses[1:, 0] *= 1.8
    found = run(losses, Evidence(state="h", forgotten="gone"))
    assert found.jumps >= 0.8 * (EPOCHS - 5)
    assert list(found.report()["causes"]) == ["state_reset"]


def test_one_wild_first_batch_is_no_jump() -> None:
    losses = NOISE["even"](np.random.default_rng(1), EPOCHS * 40).reshape(EPOCHS, 40)
    losses[7, 0] = 100.0
    assert run(losses).jumps == 0


def test_one_border_that_rises_for_good_is_found_where_it_is() -> None:
    losses = NOISE["even"](np.random.default_rng(2), EPOCHS * 40).reshape(EPOCHS, 40)
    losses[9:] *= 3.0
    report = run(losses).report()
    assert report["jumps"] == 1
    assert report["causes"]["no_cause_found"]["first_epoch"] == 10
    assert report["causes"]["no_cause_found"]["rise"] == pytest.approx(2.0, abs=0.5)


def test_an_earlier_jump_is_put_down_to_the_order_once_that_is_known() -> None:
    chance = np.random.default_rng(3)
    places = np.exp(np.linspace(1.0, -1.0, 14) + 0.2 * chance.standard_normal(14))
    report = run(places * np.exp(0.02 * chance.standard_normal((EPOCHS, 14)))).report()
    assert list(report["causes"]) == ["order_of_data"]


def test_a_border_without_enough_to_compare_with_is_not_judged() -> None:
    assert not read_border([np.ones(40)]).judged
    assert not read_border([np.ones(3), np.ones(3)]).judged
    assert not read_border([np.ones(6), np.ones(6)]).judged  # 3 inner places each
    assert read_border([np.ones(40), np.ones(40)]).judged


def test_a_loss_that_never_moves_is_judged_without_a_division_by_zero() -> None:
    (first, *_) = read_border([np.full(40, 2.0), np.full(40, 2.0)]).comparisons
    assert (first.rise, first.z) == (0.0, 0.0)


def test_inner_rises_compare_the_next_losses_with_those_before() -> None:
    losses = np.array([1.0, 1.0, 1.0, 1.0, 5.0, 1.0])
    np.testing.assert_allclose(inner_rises(losses, 1), [4.0, -1.0])
    assert len(inner_rises(losses[:4], 1)) == 0


def test_a_long_epoch_keeps_its_ends() -> None:
    losses = np.arange(10_000.0)
    kept = kept_places(losses)
    assert len(kept) == 4097
    assert (kept[0], kept[-1]) == (0.0, 9999.0)
    assert np.isnan(kept[2048])


def test_the_same_rows_at_the_same_places_are_recognised_and_shuffled_ones_are_not() -> None:
    chance = np.random.default_rng(4)
    rows = chance.standard_normal(64)
    noise = 0.1 * chance.standard_normal((2, 64))
    assert same_order(rows + noise[0], rows + noise[1]) > 4.0
    assert max(same_order(rows, chance.permutation(rows)) for _ in range(50)) < 4.5
    falling = np.exp(-np.arange(64) / 20.0)
    assert max(same_order(falling + 0.1 * a, falling + 0.1 * b) for a, b in chance.standard_normal((50, 2, 64))) < 4.5


def test_rows_that_are_shuffled_within_parts_of_a_file_are_recognised_too() -> None:
    chance = np.random.default_rng(5)
    parts = np.repeat(chance.standard_normal(50), 8)
    assert same_order(parts + 0.5 * chance.standard_normal(400), parts + 0.5 * chance.standard_normal(400)) > 4.5


def test_a_rise_recurs_only_where_several_borders_say_so() -> None:
    assert not recurs([9.0, 9.0])
    assert recurs([9.0, 9.0, 9.0])
    assert not recurs([20.0, 0.0, 0.0, 0.0, 0.0])
    assert recurs([2.6] * 9)


def test_a_transient_recovers_and_another_part_of_the_data_does_not() -> None:
    transient = 1.0 + 2.0 * np.exp(-np.arange(40) / 2.0)
    assert recovered_after(transient, 1.0, 2.0) in {1, 2}
    assert recovered_after(np.linspace(3.0, 1.0, 40), 1.0, 2.0) is None


def test_the_usual_profile_leaves_out_epochs_of_another_length() -> None:
    np.testing.assert_allclose(usual_profile([np.zeros(3), np.ones(4), np.full(4, 3.0)]), np.full(4, 2.0))


def test_what_is_known_is_kept_as_plain_values() -> None:
    losses = NOISE["even"](np.random.default_rng(6), EPOCHS * 20).reshape(EPOCHS, 20)
    losses[10:] *= 4.0
    whole, first, second = run(losses), run(losses[:8]), Borders()
    second.load_state_dict(first.state_dict())
    for epoch, row in enumerate(losses[8:], start=9):
        second.add(epoch, row, Evidence())
    assert second.report() == whole.report()
    assert whole.jumps == 1
