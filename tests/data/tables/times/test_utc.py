import pytest

from statewise.data.files.reading import Reading
from statewise.data.tables.table import Table, read_table


@pytest.fixture
def table(tmp_path):
    def read(text: str, **named) -> Table:
        (tmp_path / "a.csv").write_text(text)
        return read_table("a.csv", folder=tmp_path, reading=Reading(**named))

    return read


def first(table: Table) -> str:
    return str(table.rows.times[0].astype("datetime64[s]"))


def refusal(table, text: str, **named) -> str:
    with pytest.raises(ValueError, match=r"^data\.") as caught:
        table(text, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_times_without_a_zone_are_taken_as_utc_and_that_is_known(table):
    found = table("time,x\n2024-01-02 10:00,1\n")
    assert first(found) == "2024-01-02T10:00:00"
    assert found.understood.naive
    assert any("zone not given, taken as UTC" in note for note in found.notes)
    with pytest.raises(ValueError, match=r"^times carry no zone: set data.timezone \(UTC is an answer too\) because .* noon$"):
        found.understood.needs_zone("the split begins at noon")


def test_a_zone_that_is_given_makes_local_times_utc(table):
    found = table("time,x\n2024-01-02 10:00,1\n2024-07-02 10:00,2\n", timezone="Europe/Berlin")
    assert [str(t.astype("datetime64[h]")) for t in found.rows.times] == ["2024-01-02T09", "2024-07-02T08"]
    assert not found.understood.naive
    assert found.understood.zone == "Europe/Berlin (data.timezone)"
    found.understood.needs_zone("nothing")


@pytest.mark.parametrize(
    "text", ["time\n2024-01-02T10:00Z", "time\n1704189600", "time_utc\n2024-01-02 10:00", "UTC time\n2024-01-02 10:00"]
)
def test_times_that_are_in_utc_need_no_zone(table, text):
    name, value = text.split("\n")
    found = table(f"{name},x\n{value},1\n", timezone="Europe/Berlin")
    assert first(found) == "2024-01-02T10:00:00"
    assert not found.understood.naive
    assert any("data.timezone=Europe/Berlin is not" in note for note in found.notes)


def test_a_zone_in_the_file_is_followed(table):
    found = table("time,x\n2024-01-02 10:00 America/New_York,1\n2024-01-02 17:00 Europe/Berlin,2\n2024-01-02 17:00Z,3\n")
    assert [str(t.astype("datetime64[h]")) for t in found.rows.times] == ["2024-01-02T15", "2024-01-02T16", "2024-01-02T17"]
    assert "did you mean Europe/Berlin" in refusal(table, "time,x\n2024-01-02 10:00 Europe/Berlni,1\n")


def test_times_with_and_without_a_zone_need_one_for_the_others(table):
    text = "time,x\n2024-01-02 10:00Z,1\n2024-01-02 12:00,2\n"
    assert "row 2 (line 3)" in refusal(table, text)
    assert "set data.timezone" in refusal(table, text)
    found = table(text, timezone="Europe/Berlin")
    assert [str(t.astype("datetime64[h]")) for t in found.rows.times] == ["2024-01-02T10", "2024-01-02T11"]


def test_faults_of_zones_have_their_place(table):
    assert refusal(table, "time,x\n2024-01-02,1\n", timezone="Europe/Belin").startswith("data.timezone must be")
    assert "row 1 (line 2)" in refusal(table, "time,x\n2024-03-31 02:30,1\n", timezone="Europe/Berlin")
    assert "row 2 (line 3)" in refusal(table, "time,x\n2024-10-27 01:00,0\n2024-10-27 02:30,1\n", timezone="Europe/Berlin")
    assert "row 1 (line 2)" in refusal(table, "time,x\n2024-01-02 10:00 EST,1\n")


def test_an_hour_shown_twice_is_told_apart_in_each_series(table):
    rows = [f"2024-10-27 {hour}:00,{name},1" for hour in ("01", "02", "02", "03") for name in "AB"]
    found = table("time,symbol,x\n" + "\n".join(rows) + "\n", timezone="Europe/Berlin")
    hours = [str(t.astype("datetime64[h]"))[-5:] for t in found.rows.times]
    assert hours == ["26T23", "27T00", "27T01", "27T02"] * 2


def test_ends_of_bars_become_their_starts(table):
    found = table("time,x\n2024-01-02 10:05,1\n2024-01-02 10:10,2\n2024-01-02 10:15,3\n", bar_label="end")
    assert first(found) == "2024-01-02T10:00:00"
    assert any("moved back by 5 minutes" in note for note in found.notes)
    assert "a.csv: the time column" in refusal(table, "time,x\n2024-01-02 10:05,1\n", bar_label="end")


def test_the_times_of_databento_are_starts(table):
    text = "ts_event,rtype,x\n1704153600000000000,33,1\n1704153660000000000,33,2\n"
    assert "ts_event is the start" in refusal(table, text, bar_label="end")


def test_a_few_values_that_are_no_times_stop_with_their_place(table):
    message = refusal(table, "time,x\n2024-01-02,1\n2024-01-03,2\nhello,3\nworld,4\n")
    assert 'a.csv: row 3 (line 4): the time column "time" holds "hello", which is no time (2 such rows)' in message


def test_every_column_of_the_file_has_a_part_and_a_reason(table):
    found = table("date,clock,symbol,instrument_id,x,wind,void\n2024-01-02,9:30,A,7,1,NW,\n").understood
    assert [(c.name, c.role) for c in found.columns] == [
        ("date", "time"), ("clock", "time"), ("symbol", "series"), ("instrument_id", "left out"),
        ("x", "number"), ("wind", "left out"), ("void", "left out"),
    ]  # fmt: skip
    assert [c.why for c in found.columns] == [
        "by name and contents", "by name and contents", "by its name", 'an identifier beside "symbol"',
        "numeric", "not numeric", "empty",
    ]  # fmt: skip
    assert found.formats
    assert all(c.type for c in found.columns)
