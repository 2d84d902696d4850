"""When numbers that are all finite still say that a run has diverged."""

FAR = 1e12
IN_A_ROW = 3


class Runaway:
    """Remembers the first training loss, and counts the validations since that are a million million times as large.

    They must be as large in themselves, too: the first loss may be next to nothing where a model begins at the answer. A
    single one is no verdict, as clipped gradients can bring a run back from a loss of 1e43. A learning rate of 1e9 leaves a
    float64 run at 1e100 to its end: nothing overflowed, and to call such a run ok would help nobody.

    Attributes:
        first: the first loss of the run; None before it.
        validations: how many in a row were so.
    """

    def __init__(self) -> None:
        self.first: float | None = None
        self.validations = 0

    def begin(self, loss: float) -> None:
        """Take note of a training loss; the first one counts."""
        if self.first is None:
            self.first = loss

    def has_run_away(self, value: float, *, last: bool) -> bool:
        """Whether a validation, the third in a row or the `last` of the run, says so."""
        far = self.first is not None and value > FAR and value > FAR * abs(self.first)
        self.validations = self.validations + 1 if far else 0
        return far and (last or self.validations >= IN_A_ROW)
