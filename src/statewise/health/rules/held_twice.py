"""One parameter that is updated twice with one gradient."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.observers.shared_updates import SharedUpdates
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Wiring

KIND = Kind(
    "held-twice",
    ("P2",),
    Cause.WIRING,
    (Severity.WARNING,),
    meaning=(
        "A parameter stands twice in the groups of one optimizer, or two optimizers hold it and step one after the other "
        "without a backward pass in between: every gradient moves it twice. Two optimizers that take turns, each after a "
        "backward pass of its own, are left alone."
    ),
    remedy="name each parameter once",
    intended="two backward passes, or `requires_grad_(False)` for one of the two",
    example="Adam([*model.encoder.parameters(), *model.parameters()])  # the encoder twice",
)


def check_groups(facts: Facts, wiring: Wiring) -> Iterator[Finding]:
    """Twice in one optimizer: torch refuses two groups, and only warns of one."""
    groups = facts.inventory.groups
    frozen = {fact.name for fact in facts.inventory.parameters if not fact.requires_grad}
    twice = {
        name: places for name, places in facts.inventory.repeated.items()
        if name not in frozen and len({groups[place].optimizer for place in places}) < len(places)
    }  # fmt: skip
    if twice:
        group = groups[next(iter(twice.values()))[0]]
        yield KIND.finding(
            Severity.WARNING,
            facts,
            twice,
            what=f"{listed(list(twice))} {'stands' if len(twice) == 1 else 'stand'} more than once in the {group.kind}",
            why="every step moves it more than once with the same gradient",
            remedy="name each parameter once",
            intended="requires_grad_(False) on it if it is not to train",
            evidence={"places": {name: list(places) for name, places in twice.items()}},
        )


def check_updates(facts: Facts, shared: SharedUpdates) -> Iterator[Finding]:
    """In two optimizers that use one gradient."""
    kinds = facts.inventory.optimizers
    one, other = shared.optimizers
    yield KIND.finding(
        Severity.WARNING,
        facts,
        shared.parameters,
        what=f"{listed(shared.parameters)} is held by two optimizers ({one} {kinds[one]}, {other} {kinds[other]}) that stepped "
        f"{shared.times} times one after the other on the same gradient",
        why="every gradient moves it twice",
        remedy="give it to one of them, or run a backward pass of its own for each",
        intended="clear its gradient between the two steps",
        evidence={"optimizers": list(shared.optimizers), "times": shared.times},
    )


RULES = (Rule(KIND, Wiring, check_groups), Rule(KIND, SharedUpdates, check_updates))
