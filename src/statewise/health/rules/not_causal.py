"""Modules that are declared causal and look ahead."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity
from statewise.health.probes.causality import EarlierOutputs
from statewise.health.probes.naming import called, subject
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "not-causal",
    ("B9",),
    Cause.BEHAVIOUR,
    (Severity.ERROR,),
    meaning="A module that is declared causal (in `health.causal`, or by `causal` in its health_contract(), as all our layers "
    "do) was given other inputs from a time step on, and its outputs before that step changed: it looks ahead. Asked only of "
    "declared modules. Typical causes: a flip, padding on the wrong side, a missing mask, a Fourier product without padding.",
    remedy="Pad on the left only, mask what lies ahead, pad a Fourier product to twice the length.",
    intended="Take the module out of `health.causal`, or `causal` out of its health_contract().",
    example="""
class Conv(nn.Module):
    def __init__(self, d):
        super().__init__()
        # Sees one step ahead. Causal: F.pad(x, (2, 0)) and no padding.
        self.conv = nn.Conv1d(d, d, 3, padding=1)

    def health_contract(self):
        return {"causal": ("",)}
""",
)


def check(facts: Facts, seen: EarlierOutputs) -> Iterator[Finding]:
    """Later inputs, earlier outputs."""
    for one in seen.ahead:
        yield KIND.finding(
            Severity.ERROR,
            facts,
            subject(facts, one.module),
            what=f"{called(facts, one.module)} is declared causal, but other inputs from time step {one.at} of {one.length} on "
            f"change its outputs from step {one.first} on (by {one.deviation:.2g} of the largest)",
            why="it is trained with what it will not know when it is used, and its errors look better than they are",
            remedy="look for a flip or roll along time, padding on the right, a missing mask, an unpadded Fourier product",
            intended="take it out of health.causal, or out of `causal` in the module's health_contract()",
            evidence={
                "module": one.module,
                "changed_from": one.at,
                "moved_from": one.first,
                "length": one.length,
                "deviation": one.deviation,
            },
        )


RULES = (Rule(KIND, EarlierOutputs, check),)
