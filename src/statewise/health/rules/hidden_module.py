"""Layers and parameters that shape the loss but stand outside the parameter tree."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.signals import AlienLeaf, Facts, FirstBackward

KIND = Kind(
    "hidden-module",
    ("R1", "R3"),
    Cause.REGISTRATION,
    (Severity.ERROR, Severity.WARNING),
    meaning=(
        "nn.Parameters outside the parameter tree (layers in a list, dict, object or closure; a parameter of another module; "
        "a product of a parameter) are leaves of the loss's graph. A warning where the optimizer holds them all the same: "
        "then they train, but no checkpoint has them."
    ),
    remedy="`nn.ModuleList`, `nn.ModuleDict`, or an attribute of the module",
    intended="`requires_grad_(False)`: a frozen reference is left alone",
    example="self.layers = [nn.Linear(16, 16)]  # the optimizer does not see it\n"
    "self.layers = nn.ModuleList([nn.Linear(16, 16)])",
)


def check(facts: Facts, first: FirstBackward) -> Iterator[Finding]:
    """Leaves of the loss's graph that are nn.Parameters, yet no parameter of this module."""
    aliens = [leaf for leaf in first.aliens if leaf.is_parameter]
    by_module: dict[str, list[AlienLeaf]] = {}
    for leaf in aliens:
        key = leaf.hidden.via if leaf.hidden is not None and leaf.hidden.via is not None else ""
        by_module.setdefault(key, []).append(leaf)
    for path, leaves in by_module.items():
        names = tuple(leaf.hidden.name for leaf in leaves if leaf.hidden is not None)
        trained = all(leaf.in_optimizer for leaf in leaves)
        shapes = ", ".join(str(list(leaf.shape)) for leaf in leaves[:3])
        count = f"{len(leaves)} trainable tensor{'s' if len(leaves) > 1 else ''}"
        if path:
            kind = leaves[0].hidden.via_kind if leaves[0].hidden is not None else "module"
            what = f"`{path}` ({kind}) holds {count} ({shapes}) that the loss uses"
            fix = "hold it as an attribute of the module, in nn.ModuleList or in nn.ModuleDict"
        elif names:
            what = f"{listed(names)}: {count} ({shapes}) that the loss uses"
            fix = "hold it in nn.ParameterList, nn.ParameterDict or as an attribute of the module"
        else:
            what = f"the loss uses {count} ({shapes}) that no attribute of the module holds"
            fix = "make it an nn.Parameter attribute of the module itself (a product or a cast of one is none)"
        blind = "the checkpoint and .to() cannot see" if trained else "the optimizer, the checkpoint and .to() cannot see"
        yield KIND.finding(
            Severity.WARNING if trained else Severity.ERROR,
            facts,
            names,
            what=f"{what} but {blind}",
            why="not registered in the module's parameter tree",
            remedy=fix,
            intended="a fixed reference: requires_grad_(False) on it",
            evidence={"shapes": [list(leaf.shape) for leaf in leaves], "in_optimizer": trained},
        )


RULES = (Rule(KIND, FirstBackward, check),)
