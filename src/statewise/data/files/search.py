"""Which files are meant."""

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from statewise.choices import nearest
from statewise.data.files.formats.content import lies_beside

_SHOWN = 10


@dataclass(frozen=True)
class Found:
    """The files that a path means.

    Attributes:
        roots: for each file the folder that was searched: what lies between it and the file may say something about the
            rows, as in symbol=AAPL/part-0.parquet; None where the file itself was named.
        notes: sentences about what was passed over.
    """

    paths: tuple[Path, ...]
    roots: tuple[Path | None, ...]
    notes: tuple[str, ...] = ()


def find_files(path: str | Sequence[str], folder: Path) -> list[Path]:
    """The files that `path` means, as `search` finds them."""
    return list(search(path, folder).paths)


def search(path: str | Sequence[str], folder: Path) -> Found:
    """One file, all in a folder and the folders in it, all that match a pattern, in the order of names; or those of a list.

    Relative paths mean `folder`; `~` is the home of the user. Raises FileNotFoundError (nothing there; with the absolute
    path and similar names) or ValueError (a folder without a file to read).
    """
    entries = [path] if isinstance(path, str) else list(path)
    if not entries or not all(entry.strip() for entry in entries):
        raise ValueError("data.path is empty: give a file, a folder, a pattern such as data/*.csv, or a list of these")
    found: dict[Path, Path | None] = {}
    notes: list[str] = []
    for entry in entries:
        paths, root = _search(entry, folder, notes)
        for each in paths:
            if each in found:
                notes.append(f"{each}: named twice and read once")
            found.setdefault(each, root)
    return Found(tuple(found), tuple(found.values()), tuple(notes))


def _search(entry: str, folder: Path, notes: list[str]) -> tuple[list[Path], Path | None]:
    """The files, the folder that was searched for them (None where a file was named)."""
    wanted = _absolute(entry, folder)
    if wanted.is_dir():
        return _inside(wanted, notes), wanted
    if wanted.exists():
        return [wanted], None
    if glob.has_magic(entry):
        # The folder itself may hold characters that mean something in a pattern.
        absolute = Path(entry).expanduser().is_absolute()
        pattern = str(wanted) if absolute else f"{glob.escape(str(folder.absolute()))}/{entry}"
        matches = sorted((f for f in map(Path, glob.glob(pattern, recursive=True)) if f.is_file()), key=_natural)
        if not matches:
            raise FileNotFoundError(f"data.path: no file matches the pattern {wanted}")
        fixed = Path(*_before_magic(wanted.parts))
        return _readable(matches, fixed, notes) or matches, fixed
    if not wanted.parent.is_dir():
        raise FileNotFoundError(f"data.path: no file {wanted}: the folder {wanted.parent} does not exist")
    names = sorted(f.name for f in wanted.parent.iterdir() if not lies_beside(f.name))
    similar = nearest(wanted.name, names) or [name for name in names if (wanted.parent / name).is_file()][:5]
    hint = f"similar names there: {', '.join(similar)}" if similar else "that folder holds no file to read"
    raise FileNotFoundError(f"data.path: no file {wanted}; {hint}")


def _absolute(entry: str, folder: Path) -> Path:
    try:
        wanted = Path(entry).expanduser()
    except RuntimeError as error:
        raise FileNotFoundError(f"data.path: no home folder is known for {entry}: write the path in full") from error
    return wanted if wanted.is_absolute() else folder.absolute() / wanted


def _before_magic(parts: Sequence[str]) -> list[str]:
    """The folders of a pattern that are named as they are."""
    first = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return list(parts[:first])


def _inside(folder: Path, notes: list[str]) -> list[Path]:
    """All files of a folder and the folders in it that may hold rows."""
    if (folder / "_delta_log").is_dir() or next((folder / "metadata").glob("*.metadata.json"), None) is not None:
        raise ValueError(
            f"data.path: {folder} is a Delta or Iceberg table, whose files hold rows that were deleted, too: write it as "
            "Parquet, with polars: pl.read_delta(...).write_parquet('bars.parquet')"
        )
    entries = sorted(folder.rglob("*"), key=_natural)
    files = [entry for entry in entries if entry.is_file()]
    astray = [entry.name for entry in entries if entry.is_symlink() and not entry.exists()]
    if astray:
        notes.append(f"passed over, links that lead nowhere: {', '.join(astray[:_SHOWN])}")
    readable = _readable(files, folder, notes)
    if not readable:
        held = f"only {', '.join(f.name for f in files[:5])}" if files else "no file at all"
        raise ValueError(f"data.path: the folder {folder} holds nothing to read: {held}")
    return readable


def _readable(files: list[Path], root: Path, notes: list[str]) -> list[Path]:
    readable = [f for f in files if not lies_beside(str(f.relative_to(root)))]
    beside = [f.name for f in files if f not in set(readable)]
    if beside and readable:
        listed = ", ".join(beside[:_SHOWN]) + (", ..." if len(beside) > _SHOWN else "")
        notes.append(f"passed over, hidden or no data by their names: {listed}")
    return readable


def _natural(path: Path) -> list[tuple[int, str]]:
    """part-2 before part-10."""
    return [(int(text or 0), "") if i % 2 else (0, text) for i, text in enumerate(re.split(r"(\d+)", str(path)))]
