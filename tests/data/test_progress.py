import io
import logging
import sys

import pytest

from statewise.data.progress import LARGE, progress, readable


def test_nothing_is_said_of_little_data(caplog, capsys):
    with caplog.at_level(logging.INFO), progress("reading", 2, "columns", LARGE - 1) as done:
        done("x")
    assert caplog.text == capsys.readouterr().err == ""


def test_without_a_terminal_one_line_says_that_it_begins_and_one_that_it_is_done(caplog, capsys):
    with caplog.at_level(logging.INFO), progress("reading a.csv", 1200, "columns", 3 * 10**9) as done:
        done("x")
    first, last = (record.getMessage() for record in caplog.records)
    assert first == "reading a.csv: 1,200 columns, 3.0 GB"
    assert last.startswith("reading a.csv: done in 0.")
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_bar_with_the_name_of_what_is_done(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress("reading", 3, "columns", LARGE) as done:
        done("close")
        done("volume")
    assert "2/3" in terminal.getvalue()
    assert "volume" in terminal.getvalue()


def test_an_error_goes_through(caplog):
    with caplog.at_level(logging.INFO), pytest.raises(ValueError, match="no number"), progress("a", 1, "columns", LARGE):
        raise ValueError("no number")
    assert "done" not in caplog.text


def test_sizes_are_readable():
    assert [readable(n) for n in (999, 64 * 10**6, 1_280_000_000)] == ["999 bytes", "64 MB", "1.3 GB"]
