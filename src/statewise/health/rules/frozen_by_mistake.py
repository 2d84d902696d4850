"""requires_grad is off where everything around it trains, or where the layer says that it must train."""

from collections import Counter
from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.parameters import ModuleFact, ParameterFact
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, Wiring

KIND = Kind(
    "frozen-by-mistake",
    ("R5",),
    Cause.REGISTRATION,
    (Severity.ERROR, Severity.WARNING, Severity.INFO),
    meaning=(
        "requires_grad is off. Error: against the contract of a layer that trains otherwise. Warning: while its siblings in "
        "the same module train; adapters, and training of biases only, are recognised. Info: all parameters of a module."
    ),
    remedy="remove the `requires_grad_(False)` call",
    intended="`health.frozen`",
    example="for name, parameter in self.named_parameters():\n"
    '    parameter.requires_grad_("in" not in name)  # meant "inp": "min" and "linear" match',
)


def check(facts: Facts, wiring: Wiring) -> Iterator[Finding]:
    """Contradictions with a contract are errors; an odd one out is probably wrong; a whole block is a fact."""
    inventory, declared = facts.inventory, facts.declared
    by_name = {fact.name: fact for fact in inventory.parameters}
    intended = declared.frozen | declared.constants
    frozen = {
        fact.name for fact in inventory.parameters
        if not fact.requires_grad and fact.dtype.is_floating_point and fact.name not in intended
    }  # fmt: skip
    if not frozen or not inventory.trainable:
        return
    # A layer of which nothing trains was frozen as a whole (a backbone, a teacher, adapters beside it): that is a choice.
    partly = {n for m in inventory.modules if any(by_name[o].requires_grad for o in m.own.values()) for n in m.own.values()}
    contradicted = tuple(name for name in by_name if name in frozen and name in declared.trainable and name in partly)
    if contradicted:
        yield KIND.finding(
            Severity.ERROR,
            facts,
            contradicted,
            what=f"{listed(contradicted)} {_has(contradicted)} requires_grad=False, but the layer declares that it must train",
            why="no gradient will reach it",
            remedy="remove the requires_grad_(False) call",
            intended=f"health.frozen=[{contradicted[0]}]",
            evidence={"contract": True},
        )
    patterns = _patterns(inventory.modules, by_name)
    odd: list[str] = []
    blocks: list[str] = []
    for module in inventory.modules:
        off = [name for name in module.own.values() if name in frozen and name not in contradicted]
        on = [name for name in module.own.values() if by_name[name].requires_grad]
        if off and not on:
            blocks.extend(off)
        elif off and not _deliberate(module, by_name, patterns):
            odd.extend(off)
    if odd:
        yield KIND.finding(
            Severity.WARNING,
            facts,
            odd,
            what=f"{listed(odd)} {_has(odd)} requires_grad=False while its siblings in the same module train",
            why="no gradient will reach it",
            remedy="remove the requires_grad_(False) call",
            intended=f"health.frozen=[{odd[0]}]",
            evidence={"contract": False},
        )
    if blocks:
        yield KIND.finding(
            Severity.INFO,
            facts,
            blocks,
            what=f"{len(blocks)} parameters of wholly frozen modules ({listed(blocks)}) have requires_grad=False",
            why="they keep their values",
            remedy="requires_grad_(True) on what should train",
            intended=f"health.frozen=[{blocks[0]}]",
            evidence={"block": True},
        )


def _has(names: tuple[str, ...] | list[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _signature(module: ModuleFact, by_name: dict[str, ParameterFact]) -> tuple[str, frozenset[str], frozenset[str]]:
    off = frozenset(local for local, name in module.own.items() if not by_name[name].requires_grad)
    return module.kind, off, frozenset(module.own) - off


def _patterns(modules: tuple[ModuleFact, ...], by_name: dict[str, ParameterFact]) -> Counter:
    return Counter(_signature(module, by_name) for module in modules if module.own)


def _deliberate(module: ModuleFact, by_name: dict[str, ParameterFact], patterns: Counter) -> bool:
    """A partly frozen module that is so by design.

    Either every module of its class that trains at all is frozen in the same way and there are several (training biases
    only), or its trainable tensors are a low-rank pair beside the frozen one (adapters).
    """
    kind, off, on = _signature(module, by_name)
    same = patterns[kind, off, on]
    training = sum(count for (other, _, trains), count in patterns.items() if other == kind and trains)
    if same >= 2 and same == training:
        return True
    shapes = [by_name[module.own[local]].shape for local in on]
    frozen = [by_name[module.own[local]].shape for local in off]
    return any(_low_rank(whole, a, b) for whole in frozen for a in shapes for b in shapes)


def _low_rank(whole: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    if not len(whole) == len(a) == len(b) == 2 or a[1] != b[0]:
        return False
    rank = a[1]
    # Stored as (out, r)(r, in) or transposed.
    return rank < min(whole) and ((a[0], b[1]) == whole or (b[1], a[0]) == whole)


RULES = (Rule(KIND, Wiring, check),)
