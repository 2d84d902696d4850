"""Blocks whose updates are tiny or huge beside their values."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts
from statewise.health.steps.signals import UpdateRatios

KIND = Kind(
    "update-ratio",
    (),
    Cause.BEHAVIOUR,
    (Severity.INFO,),
    meaning=(
        "In twenty compared steps running the update of every parameter of a block was below a millionth, or above a tenth, of "
        "its values (root mean squares). A fact: a fitted model takes small steps, a layer that began as zeros large ones."
    ),
    remedy="look at the block's learning rate and gradient norm",
    intended="none needed",
)


def check(facts: Facts, ratios: UpdateRatios) -> Iterator[Finding]:
    """One fact for each block."""
    for block, (ratio, names) in ratios.outside.items():
        yield KIND.finding(
            Severity.INFO,
            facts,
            names,
            what=f"the updates of `{block}` are {ratio:.1e} of its values, {ratios.steps} compared steps running",
            why="most networks train at about 1e-3",
            remedy="look at its learning rate and gradient norm",
            intended="nothing needs to be declared",
            evidence={"ratio": ratio, "block": block},
        )


RULES = (Rule(KIND, UpdateRatios, check),)
