"""When a training loss that is still a number is one that no run comes back from."""

FAR = 1e12


class Runaway:
    """Remembers the first loss, and tells of a later one that is a million million times as large, and as large in itself.

    Both, because the first loss may be next to nothing where a model begins at the answer, and the size alone may be that of
    targets in their own units. A learning rate of 1e9 ends a float64 run at a loss of 1e100: nothing overflowed, and to call
    such a run ok would help nobody.

    Attributes:
        first: the first loss of the run; None before it.
    """

    def __init__(self) -> None:
        self.first: float | None = None

    def is_beyond_return(self, loss: float) -> bool:
        """Whether this one is; the first itself never is."""
        if self.first is None:
            self.first = loss
        return loss > FAR and loss > FAR * abs(self.first)
