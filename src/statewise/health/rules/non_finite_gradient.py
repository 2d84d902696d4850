"""A gradient that is no number, behind a loss that is one."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.observers.loss_values import NotFinite
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "non-finite-gradient",
    ("N4",),
    Cause.NUMERICS,
    (Severity.ERROR, Severity.WARNING),
    meaning="A gradient holds NaN or infinity while the loss is finite. A warning at once, an error in the third of twenty "
    "steps. Looked at in the first updates, at every walk through the graph, when an update is left out, and when the values "
    "have become NaN. In the first batch hooks on the graph say in which operation it began. With a GradScaler skipped steps "
    "are normal: ten of twenty are a warning, fifteen an error. In `python train.py` NumericsGuard stops the run at such a "
    "gradient; this finding is said before.",
    remedy="Keep the operation away from where its slope is infinite: sqrt, norm or a division at 0, log of 0, `where` with "
    "a branch that is NaN.",
    intended='`return {"intended": ("non-finite-gradient",)}` from the module\'s `health_contract()`.',
    example="distance = (a - b).pow(2).sum(-1).sqrt()  # where a equals b the slope is infinite: 0 * inf is NaN",
)
# Of the last twenty steps.
_ERROR = 3
_SCALED_WARNING, _SCALED_ERROR = 10, 15


def check(facts: Facts, news: NotFinite) -> Iterator[Finding]:
    """Once is enough to lose the weights."""
    if not news.parameters or (news.scaler and news.count < _SCALED_WARNING):
        return
    severity = Severity.ERROR if news.count >= (_SCALED_ERROR if news.scaler else _ERROR) else Severity.WARNING
    names = news.parameters
    if news.spoilt:
        what = (
            f"{listed(names)} became NaN in update {facts.step}, although the loss before it was {news.loss:g}: the gradient "
        )
        what += "was not finite"
    else:
        where = f", beginning in the backward pass of {news.operation.lower()}" if news.operation else ""
        where += f" in `{news.place}`" if news.place else ""
        times = f" in {news.count} of the last {news.window} steps" if news.count > 1 else ""
        what = f"the gradient of {listed(names)} is not finite{times}, while the loss is {news.loss:g}{where}"
    yield KIND.finding(
        severity,
        facts,
        names,
        what=what,
        why="one such update makes the weights NaN, and a step that is left out learns nothing",
        remedy="look for sqrt, norm or a division at 0, log of 0, or where() over a branch that is NaN",
        intended='return {"intended": ("non-finite-gradient",)} from the module\'s health_contract()',
        evidence={"operation": news.operation, "module": news.place, "count": news.count, "loss": news.loss},
    )


RULES = (Rule(KIND, NotFinite, check),)
