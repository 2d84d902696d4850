"""Run folders: each is made for one run, and none is written to twice."""

from pathlib import Path


def new_folder(path: str) -> str:
    """Create a folder that did not exist before: `path`, or `path-2` and so on where another run took it first."""
    wanted = Path(path)
    wanted.parent.mkdir(parents=True, exist_ok=True)
    candidate, count = wanted, 1
    while True:
        try:
            candidate.mkdir()
            return str(candidate)
        except FileExistsError:
            count += 1
            candidate = wanted.with_name(f"{wanted.name}-{count}")
