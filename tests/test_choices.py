"""One way to refuse a value: the key, what is allowed, and the nearest of them."""

import pytest

from statewise.choices import at_least, did_you_mean, nearest, one_of


def test_an_allowed_value_is_returned():
    assert one_of("task.loss", "mse", ("mse", "mae")) == "mse"


def test_another_one_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"^task\.loss must be one of mse, mae, got 'mes'; did you mean mse\?$"):
        one_of("task.loss", "mes", ("mse", "mae"))


def test_a_value_like_none_of_them_gets_no_guess():
    with pytest.raises(ValueError, match=r"^task\.loss must be one of mse, mae, got 'zzz'$"):
        one_of("task.loss", "zzz", ("mse", "mae"))


def test_a_long_list_is_cut():
    with pytest.raises(ValueError, match=r"x19 and 10 more, got 'y'"):
        one_of("data.targets", "y", [f"x{i:02d}" for i in range(30)])


def test_case_does_not_matter_for_a_guess():
    assert nearest("CLOSE", ["open", "Close"]) == ["Close"]
    assert did_you_mean("PRICE", ["price", "volume"]) == "; did you mean price?"


def test_numbers_are_named_by_their_key():
    at_least(1, data__window=1)
    with pytest.raises(ValueError, match=r"^data\.window must be at least 1, got 0$"):
        at_least(1, data__batch_size=5, data__window=0)
