"""Healthy set-ups that look like faults: T1 to T24 of the specification, and further ones (X) that it does not list."""

from health_cases.look_alikes import architecture, graph, loop, models, objectives, procedures, rows, weights
from health_cases.set_up import SetUp


def _number(set_up: SetUp) -> tuple[int, str]:
    return int(set_up.id[1:].rstrip("abcdef")), set_up.id


SET_UPS = tuple(sorted((*architecture.SET_UPS, *graph.SET_UPS, *loop.SET_UPS, *weights.SET_UPS), key=_number))
"""What the score counts."""

EXTRA = tuple(sorted((*objectives.SET_UPS, *models.SET_UPS, *rows.SET_UPS, *procedures.SET_UPS), key=_number))
"""What the score prints and does not count."""
