"""What was understood of files: each column's part, and how times became UTC."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """One column of the file.

    Attributes:
        role: `time`, `series`, `number` or `left out`.
        type: as the file has it.
        why: it has this role, in a few words.
    """

    name: str
    role: str
    type: str
    why: str


@dataclass(frozen=True)
class Understood:
    """What was understood of files.

    Attributes:
        formats: of the files, each once.
        columns: all of them, in the order of the file.
        zone: how times became UTC, in a few words; empty where there are none.
        naive: whether times carry no zone and data.timezone was not given.
    """

    formats: tuple[str, ...]
    columns: tuple[Found, ...]
    zone: str
    naive: bool

    def needs_zone(self, why: str) -> None:
        """Raises ValueError where no zone of the times is known; `why` ends the sentence after `because`."""
        if self.naive:
            raise ValueError(f"times carry no zone: set data.timezone (UTC is an answer too) because {why}")
