"""Values that are missing."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import Subject, counted, longest_run, share

_MUCH = 0.2


def missing_values(subject: Subject, name: str, values: Float[np.ndarray, " r"]) -> Iterator[Oddity]:
    """Once, where there are any."""
    gone = np.isnan(values)
    found = np.flatnonzero(gone)
    if not len(found):
        return
    longest, missing = longest_run(gone, subject.rows.offsets), subject.missing
    message = f"{name}: {counted(len(found), 'value')} missing ({share(len(found), len(gone))}), at most {longest:,} in a row"
    if missing.policy == "error":
        severity, remedy = "error", "data.missing.policy=error refuses them: fill or segment, or correct the file"
    elif missing.policy == "segment":
        severity, remedy = "info", "rows without them are left out (data.missing.policy=segment)"
    else:
        severity = "info"
        remedy = f"filled from the past, {missing.max_fill:,} in a row at most (data.missing.max_fill), and never a target"
        if longest > missing.max_fill:
            remedy += "; no window crosses a longer run"
    if len(found) > _MUCH * len(gone) and severity == "info":
        severity, remedy = "warning", f"{remedy}; or leave {name} out of data.features"
    yield Oddity("missing-values", severity, len(found), subject.places(found), message, remedy)
