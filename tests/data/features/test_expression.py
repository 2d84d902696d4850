import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.data.features.expression import Expression, parse

names = st.text(st.sampled_from("ab.1 '\"(),-"), min_size=1, max_size=6).filter(
    lambda name: name == name.strip() and not ("'" in name and '"' in name)
)


def test_a_call_holds_its_arguments_and_the_part_after_the_dot():
    found = parse("zscore( log_return(pm2.5) ,60).sin")

    inner = Expression("log_return", (Expression("pm2.5"),))
    assert found == Expression("zscore", (inner, Expression("60")), "sin")
    assert str(found) == "zscore(log_return(pm2.5), 60).sin"


def test_names_with_blanks_and_dots_stand_bare_and_others_in_quotes():
    assert parse("mean(Adj Close, 5)") == parse("mean('Adj Close',5)") == parse('mean("Adj Close", 5)')
    assert str(parse("mean('Volume (BTC)', 5)")) == "mean('Volume (BTC)', 5)"
    assert str(parse('lag("it\'s")')) == 'lag("it\'s")'


def test_a_known_column_needs_no_quotes_whatever_it_holds():
    columns = ["Volume (BTC)", "Volume", "a, b"]

    assert parse("mean(Volume (BTC), 5)", columns) == Expression("mean", (Expression("Volume (BTC)"), Expression("5")))
    assert parse("lag(a, b)", columns) == Expression("lag", (Expression("a, b"),))
    assert parse("Volume (BTC)", columns) == Expression("Volume (BTC)")


@given(st.recursive(names.map(Expression), lambda inner: st.builds(
    Expression, st.sampled_from(["f", "log_return"]), st.lists(inner, max_size=3).map(tuple), st.sampled_from(["", "sin"])
), max_leaves=6))  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_what_is_written_reads_back_as_it_was(expression):
    assert parse(str(expression)) == expression


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("log_return(close", "no closing bracket"),
        ("mean(close,3))", "')' after its end"),
        ("mean('close, 3)", "a quote that does not end"),
        ("mean(close,, 3)", "no name before ','"),
        ("mean(,3)", "no name before ','"),
        ("(close)", "no name before '('"),
        ("mean('a' 'b')", "'b' where a comma or a closing bracket belongs"),
        ("mean(close,", "no name at its end"),
        ("", "no name at its end"),
    ],
)
def test_what_is_no_expression_is_refused_with_the_reason_in_one_line(text, message):
    with pytest.raises(ValueError, match="write name") as raised:
        parse(text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
