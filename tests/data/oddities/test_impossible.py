import pytest

from statewise.data.datasets import File

ROWS = [f"2024-01-02 10:{minute:02d},{100 + minute},{101 + minute},{99 + minute},{100 + minute},5" for minute in range(40)]


@pytest.fixture
def file(tmp_path):
    def module(rows: list[str], **keys) -> File:
        (tmp_path / "bars.csv").write_text("time,open,high,low,close,volume\n" + "\n".join(rows) + "\n")
        return File(path="bars.csv", folder=str(tmp_path), window=4, **keys)

    return module


def changed(row: int, text: str) -> list[str]:
    rows = list(ROWS)
    rows[row] = f"{rows[row].split(',')[0]},{text}"
    return rows


def test_a_close_outside_of_its_bar_is_told_in_the_account_of_a_run_with_its_first_place(file):
    module = file(changed(7, "107,108,106,190,5"))
    module.setup()
    assert "close lies outside of low and high in 1 row, first: 2024-01-02T10:07:00Z" in module.notes


def test_under_the_policy_error_it_stops_with_the_key(file):
    module = file(changed(7, "107,106,108,107,5"), impossible_bars="error")
    with pytest.raises(
        ValueError, match=r"^data\.path: low is above high in 1 row, first: .*10:07:00Z: .*impossible_bars=keep"
    ):
        module.setup()


def test_bars_in_which_nothing_was_traded_are_told(file):
    module = file(changed(3, "103,104,102,103,0"), impossible_bars="error")
    module.setup()
    assert any(note.startswith("volume: zero in 1 row (2.5 %)") for note in module.notes)


def test_sound_bars_are_worth_no_sentence(file):
    module = file(ROWS)
    module.setup()
    assert not [note for note in module.notes if "outside" in note or "zero in" in note or "above high" in note]


def test_only_columns_that_are_read_are_looked_at(file):
    module = file(changed(7, "107,106,108,107,5"), impossible_bars="error", features=["close"])
    module.setup()
    assert module.feature_names == ("close",)


def test_an_unknown_policy_is_refused_with_the_nearest_name(file):
    with pytest.raises(ValueError, match=r"data\.impossible_bars must be one of .*'kep'; did you mean keep"):
        file(ROWS, impossible_bars="kep")
