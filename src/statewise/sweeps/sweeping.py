"""What a command's sweeper, launcher and end have in common: the sweep, once it has begun."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from statewise.config import FULL_ERROR

if TYPE_CHECKING:
    from statewise.sweeps.sweep import Sweep


class Sweeping:
    """The sweep of one command; most commands have none, so nothing is imported before one begins.

    Args:
        typed: the command line.
    """

    def __init__(self, typed: Sequence[str]) -> None:
        self.typed = list(typed)
        self.full_error = os.environ.get(FULL_ERROR, "")  # as the user has it: while Hydra runs it is ours
        self.sweep: Sweep | None = None

    def begin(self, folder: Path, objective: str) -> "Sweep":
        """The sweep; it begins with the first call.

        Args:
            folder: of the sweep.
            objective: the name of what is minimised.
        """
        if self.sweep is None:
            from statewise.sweeps.sweep import Sweep

            folder.mkdir(parents=True, exist_ok=True)
            self.sweep = Sweep(folder, objective)
        return self.sweep
