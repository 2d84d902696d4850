"""Texts that are no table, or in which a line is broken: each ends in one line that says where."""

import pytest

from statewise.data.files.formats.content import contents_of
from statewise.data.files.formats.text import open_text
from statewise.data.files.reading import Reading

MANY = "1,2,3\n" * 3000


@pytest.fixture
def refusal(tmp_path):
    def write(content: bytes | str, **reading) -> str:
        path = tmp_path / "bars.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        with pytest.raises(ValueError, match=r"^data\.path") as caught:
            open_text(contents_of(path)[0], Reading(**reading))
        message = str(caught.value)
        assert "\n" not in message
        assert str(path) in message
        return message

    return write


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty (0 rows, not even a header)"),
        ("\n\n  \n", "is empty"),
        ("\ufeff", "is empty"),
        (b"\0" * 5000, "nothing but NUL bytes"),
        (b"\x7fELF\x02\x01\0\0", "is no text but binary"),
        (b"a,b\n1,\x02\n", "is no text but binary"),
        (b"a,b\nx,2\ny,4\0\nz,6\n", "holds a NUL byte in line 3"),
        ("a,a\n1,2\n", 'two columns named "a"'),
    ],
)
def test_what_is_no_table_says_what_it_is(refusal, content, words):
    assert words in refusal(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b\n1,2\n1,2,3\n", "row 2 (line 3) has 3 fields, the header 2: correct that line"),
        ("a,b,c\n1,2,3\n1,2\n4,5,6\n", "row 2 (line 3) has 2 fields, the header 3: correct that line"),
        ("a,b,c\n1,2,3\n\n1,2\n4,5,6\n", "row 3 (line 4) has 2 fields, the header 3"),
        ("a,b,c\n1,2,3\n1,2,5\n4,5", "row 3 (line 4) has 2 fields, the header 3; is the file cut off there?"),
        ("a,b,c\n1,2,3\n1,2,5\n4\n", "row 3 (line 4) has 1 field, the header 3; is the file cut off there?"),
        ("a,b,c\n1,2\n3,4\n5,6\n", "row 1 (line 2) has 2 fields, the header 3"),
        ("a,b\n1,2,3\n1,2,3\n", "row 1 (line 2) has 3 fields, the header 2"),
        ("a;b;c\n1;2;3\n1;2\n4;5;6\n", "row 2 (line 3) has 2 fields"),
        ("a b c\n1 2 3\n1 2\n4 5 6\n", "row 2 (line 3) has 2 fields"),
        ("# note\n\ntitle\na,b,c\n1,2,3\n1,2\n4,5,6\n", "row 2 (line 6) has 2 fields"),
        ("a,b,c\r\n1,2,3\r\n1,2\r\n4,5,6\r\n", "row 2 (line 3) has 2 fields"),
        ("a,b,c\r1,2,3\r1,2\r4,5,6\r", "row 2 (line 3) has 2 fields"),
        ('a,b,c\n1,"x,y",3\n1,"x,y"\n4,5,6\n', "row 2 (line 3) has 2 fields"),
        ("a,b,c\n1,2,\n1,2,3\n1,2\n4,5,\n", "row 3 (line 4) has 2 fields"),
        ("a,b,c\n" + MANY + "1,2\n" + MANY, "row 3001 (line 3002) has 2 fields"),
        ("a,b,c\n" + MANY + "1,2,3,4\n" + MANY, "row 3001 (line 3002) has 4 fields"),
        ("a,b,c\n" + MANY + "# pause\n1,2,3,4\n" + MANY, "row 3002 (line 3003) has 4 fields"),
        (
            "a,b,c\n" + "2024-01-01,x,\n" * 3000 + "2024-01-01,x\n" + "2024-01-01,x,\n" * 3000,
            "row 3001 (line 3002) has 2 fields",
        ),
    ],
)
def test_a_line_of_the_wrong_number_of_fields_is_named(refusal, content, words):
    assert words in refusal(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('a,b\n1,"2\n3,4\n5,6\n', "row 1 (line 2)"),
        ('a,b\nx,2\ny,"4\nz,6\n', "row 2 (line 3)"),
        ('a,b\n"x,2\ny,4\nz",6\n', "row 1 (line 2)"),
        ("a,b,c\n" + MANY + '1,"x,3\n' + MANY, "row 3001 (line 3002)"),
        ("a,b,c\n" + "x,y,z\n" * 3000 + 'x,"y\ny",z\n' + "x,y,z\n" * 3000, "row 3001 (line 3002)"),
    ],
)
def test_a_quote_left_open_is_named(refusal, content, words):
    message = refusal(content)
    assert words in message
    assert "is opened and not closed in its line" in message


def test_a_header_alone_has_no_rows(tmp_path):
    for text in ("time,close", "time,close\n", "time,close\n\n\n", "# time,close\n", "time;close\n"):
        (tmp_path / "a.csv").write_text(text)
        one = open_text(contents_of(tmp_path / "a.csv")[0], Reading())
        assert one.rows == 0
        assert one.frame.collect().columns == ["time", "close"]


def test_brackets_in_the_name_of_the_file_mean_nothing(tmp_path):
    (tmp_path / "a[1].csv").write_text('t,x\n1,"a"\n2,\n')
    one = open_text(contents_of(tmp_path / "a[1].csv")[0], Reading())
    assert one.frame.collect().rows() == [(1, "a"), (2, None)]
