from pathlib import Path

import pytest

from statewise.data.features.formula import base_columns, formulas
from statewise.data.features.functions import function_table

COLUMNS = ("open", "close", "pm2.5", "Volume (BTC)")


def names(*texts):
    return [formula.name for formula in formulas(texts, COLUMNS, "data.features")]


def test_every_spelling_of_an_expression_has_one_name():
    assert names("log_return( close ,1)", "log_return(close, n=1)", "log_return('close')") == ["log_return(close)"] * 3
    assert names("zscore(log_return(close, 5), 60)") == ["zscore(log_return(close, 5), 60)"]
    assert names("mean(Volume (BTC), 5)") == ["mean('Volume (BTC)', 5)"]


def test_time_functions_are_two_columns_which_can_be_chosen_one_by_one():
    assert names("hour()", "weekday().cos") == ["hour().sin", "hour().cos", "weekday().cos"]


def test_warm_up_adds_up_over_nested_functions():
    (formula,) = formulas(["zscore(log_return(close, 5), 60)"], COLUMNS, "data.features")
    assert formula.warm_up == 64


def test_base_columns_are_those_of_the_file_each_once():
    assert base_columns(["close", "log_return(close)", "zscore(mean(x.y, 3), 9)", "hour()"]) == ["close", "x.y"]


def test_a_column_whose_name_looks_like_an_expression_is_that_column():
    columns = ("log_return(close)", "close")
    assert base_columns(["log_return(close)"], columns) == ["log_return(close)"]
    (formula,) = formulas(["log_return(close)"], columns, "data.features")
    assert (formula.column, formula.steps) == ("log_return(close)", ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clsoe", "data.features must be one of open, close, pm2.5, Volume (BTC), got 'clsoe'; did you mean close?"),
        ("log_return(clsoe)", "there is no numeric column 'clsoe'; did you mean close?; there are open, close"),
        (
            "log_retrun(close)",
            "there is no function 'log_retrun'; did you mean log_return?; there are log_return(column, n=1), ",
        ),
        ("Volume (BTX)", "did you mean Volume (BTC)?"),
        ("zscore(close)", "zscore(column, n) does not take 1 argument"),
        ("log_return()", "log_return(column, n=1) does not take 0 arguments"),
        ("log(close, 2)", "log(column) does not take 2 arguments"),
        ("hour(close)", "hour() does not take 1 argument"),
        ("zscore(close, sixty)", "n in zscore(column, n) must be a whole number of rows, got 'sixty'"),
        ("mean(close, 2.5)", "must be a whole number of rows, got '2.5'"),
        ("mean(close, lag(close))", "must be a whole number of rows, got 'lag(close)'"),
        ("lag(close, -3)", "n in lag(column, n=1) must be at least 1, got -3"),
        ("std(close, 1)", "must be at least 2, got 1"),
        ("hour", "hour is a function: write hour()"),
        ("hour().tan", "the part of hour() must be one of sin, cos, got 'tan'"),
        ("zscore(close, 5).sin", "zscore gives one column, and none that is called 'sin'"),
        ("zscore(hour(), 4)", "hour() is 2 columns: choose hour().sin or hour().cos"),
        ("log_return(close", "data.features: 'log_return(close' is no expression"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line_with_the_key_and_the_nearest_name(text, message):
    with pytest.raises(ValueError, match=r"^data\.features") as raised:
        formulas([text], COLUMNS, "data.features")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_documentation_has_the_table_of_the_functions():
    text = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    assert function_table() in text
