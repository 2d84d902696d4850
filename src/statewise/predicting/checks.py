"""Whether a new file is of the form that a model was trained on: what is refused, and what is warned of, in one line each."""

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from statewise.data.form import Form, step_of
from statewise.data.preparation.scaling import StandardScaler
from statewise.data.segments.gaps import Gap, length_of
from statewise.data.tables.rows import Rows
from statewise.data.tables.table import Table

FAR = 50.0  # standard deviations that no value of the same units should be away from the mean of the training rows
_SHOWN = 5


def form_warnings(table: Table, form: Form, gap: Gap, scaler: StandardScaler, file: str) -> list[str]:
    """Sentences about what is odd.

    Raises:
        ValueError: there are no times where training had them, or they have another step.
    """
    if table.rows.times is None and form.time is not None:
        raise ValueError(
            f'{file} has no column of times, and the training data had one ("{form.time}"): name it with data.time=COLUMN'
        )
    found = [about_step(table.rows, form, gap, file), about_zone(table, form, file), unknown_series(table.rows, scaler, file)]
    return [sentence for sentence in found if sentence]


def about_step(rows: Rows, form: Form, gap: Gap, file: str) -> str:
    """Nothing where the step is that of the training data, else a sentence.

    Raises:
        ValueError: both are regular, and not the same: a model counts in rows.
    """
    own, trained = step_of(rows, Gap(gap.policy)), form.step
    if own is None or trained is None:
        return ""
    # As gaps are found: months, and an hour that a clock skips, are no other step.
    if 2 * max(own.length, trained.length) < 3 * min(own.length, trained.length):
        return ""
    what = (
        f"{file} has another frequency: its rows are {length_of(own.length)} apart, those of the training data "
        f"{length_of(trained.length)}, and the model counts in rows"
    )
    if own.usual and trained.usual and gap.policy != "ignore":
        raise ValueError(f"{what}: bring the file to the frequency of the training data, or train on this one")
    return what


def about_zone(table: Table, form: Form, file: str) -> str:
    """A sentence where only one of the two says its time zone."""
    naive = None if table.understood is None or table.rows.times is None else table.understood.naive
    if naive is None or form.naive is None or form.time is None or naive == form.naive:
        return ""
    if naive:
        return f"the times of {file} carry no zone and are taken as UTC, those of the training data had one: say data.timezone"
    return f"the times of {file} are in UTC, those of the training data carried no zone: hours of the day may differ"


def unknown_series(rows: Rows, scaler: StandardScaler, file: str) -> str:
    """A sentence about series that have no scale of their own."""
    if not scaler.per_series:
        return ""
    unknown = [name for name in rows.series if name not in scaler.series]
    if not unknown:
        return ""
    if unknown == [""]:
        return f"{file} names no series, and the scale of training was per series: the scale of all series is used"
    shown = ", ".join(unknown[:_SHOWN]) + (f" and {len(unknown) - _SHOWN:,} more" if len(unknown) > _SHOWN else "")
    return f"not in the training data, so scaled by the scale of all series: {shown}"


def far_values(scaled: Tensor, looked_at: Bool[np.ndarray, " r"], name: str, rows: Rows, scaler: StandardScaler) -> str:
    """A sentence where a scaled column is in other units than the training rows, by its size."""
    size = scaled.abs().numpy()
    far = (size > FAR) & looked_at
    if not far.any():
        return ""
    count, row = int(far.sum()), int(np.argmax(np.where(far, size, -1.0)))
    more = f" ({count:,} such values, this one the largest)" if count > 1 else ""
    place = f"{rows.at(row)}{rows.of_series(row)}"
    return far_sentence(name, float(scaled[row]), rows.series[rows.series_of(row)], scaler, place, more)


def far_sentence(name: str, scaled: float, series: str, scaler: StandardScaler, where: str, more: str = "") -> str:
    """One value that is far away, what it is and what was usual."""
    group = scaler.series.index(series) + 1 if series in scaler.series else 0
    column = scaler.names.index(name)
    mean, scale = float(scaler.mean[group, column]), float(scaler.scale[group, column])
    return (
        f'{where}, column "{name}": {scaled * scale + mean:.6g} is {abs(scaled):,.0f} standard deviations from the mean of '
        f"training{more}: other units? (training: mean {mean:.6g}, standard deviation {scale:.6g})"
    )
