"""The form of an expression: a name, or a name with arguments in brackets, each of them an expression again.

    log_return(close)      zscore(log_return(close), 60)      mean('Volume (BTC)', 5)      difference(pm2.5)      hour().sin

A column's name may hold dots and blanks as it is; one that holds a bracket, a comma or a quote stands in quotes, unless
the columns of the file are known. What the names mean is said in formula.py.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

EXAMPLE = "write name(column, rows), such as zscore(volume, 60)"
_TOKEN = re.compile(r"""\s*(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<mark>[(),])|(?P<bare>[^(),'"]+))""")
_SPECIAL = re.compile(r"""[(),'"]|^\s|\s$|^$""")


@dataclass(frozen=True)
class Expression:
    """A name, and its arguments where it was called; `part` is what follows the call after a dot."""

    name: str
    arguments: "tuple[Expression, ...] | None" = None
    part: str = ""

    def __str__(self) -> str:
        """As people write it, every spelling of one expression the same."""
        if self.arguments is None:
            return quoted(self.name)
        return f"{self.name}({', '.join(map(str, self.arguments))})" + (f".{self.part}" if self.part else "")


def quoted(name: str) -> str:
    """A column's name as an expression holds it: in quotes where it could be read as something else."""
    if not _SPECIAL.search(name):
        return name
    return f'"{name}"' if "'" in name else f"'{name}'"


def parse(text: str, columns: Iterable[str] = ()) -> Expression:
    """Reads an expression.

    Args:
        columns: names that are taken as they stand, whatever they hold, the text as a whole first of all.

    Raises:
        ValueError: the text is none.
    """
    known = sorted((name for name in set(columns) if _SPECIAL.search(name)), key=len, reverse=True)
    if text in columns:
        return Expression(text)
    reader = _Reader(text, known)
    found = reader.expression()
    if reader.rest():
        raise reader.wrong(f"{reader.rest()!r} after its end")
    return found


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str, known: Sequence[str]) -> None:
        self._text, self._known, self._place = text, known, 0

    def rest(self) -> str:
        return self._text[self._place :].strip()

    def wrong(self, what: str) -> ValueError:
        return ValueError(f"{self._text!r} is no expression, it has {what}: {EXAMPLE}")

    def expression(self) -> Expression:
        if (name := self._known_column()) is not None:
            return Expression(name)
        kind, name = self._token()
        if kind in ("single", "double"):
            return Expression(name)
        if kind != "bare":
            raise self.wrong(f"no name before {name!r}" if name else "no name at its end")
        if not self.rest().startswith("("):
            return Expression(name)
        self._token()
        arguments: list[Expression] = []
        if self.rest().startswith(")"):
            self._token()
        else:
            mark = ","
            while mark == ",":
                arguments.append(self.expression())
                kind, mark = self._token()
                if mark not in (",", ")") or kind != "mark":
                    raise self.wrong(f"{mark!r} where a comma or a closing bracket belongs" if mark else "no closing bracket")
        return Expression(name, tuple(arguments), self._part())

    def _known_column(self) -> str | None:
        text = self._text[self._place :].lstrip()
        for name in self._known:
            if text.startswith(name) and re.match(r"\s*([,)]|$)", text[len(name) :]):
                self._place = len(self._text) - len(text) + len(name)
                return name
        return None

    def _part(self) -> str:
        if not self.rest().startswith("."):
            return ""
        return self._token()[1].removeprefix(".").strip()

    def _token(self) -> tuple[str, str]:
        """The kind and the text of the next token; two empty strings at the end."""
        match = _TOKEN.match(self._text, self._place)
        if match is None or not match.group().strip():
            if self.rest():
                raise self.wrong("a quote that does not end")
            return "", ""
        self._place = match.end()
        kind = str(match.lastgroup)
        return kind, match[kind].strip() if kind == "bare" else match[kind]
