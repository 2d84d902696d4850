"""The parameter table at the start of a run, as text."""

from io import StringIO

from rich.console import Console
from rich.table import Table

from statewise.health.parameters import Inventory, ParameterFact

_ROWS = 200


def parameter_table(inventory: Inventory, reached: frozenset[str] | None) -> str:
    """Every parameter with its shape, group, lr, weight decay, and whether the first loss reaches it.

    reached: names, or None where no backward pass has been seen yet.
    """
    table = Table(title=f"{len(inventory.parameters)} parameters", title_justify="left", box=None, pad_edge=False)
    for title in ("parameter", "shape", "dtype", "trains", "group", "lr", "weight decay", "in graph"):
        table.add_column(title, no_wrap=True, justify="right" if title in {"lr", "weight decay"} else "left")
    for fact in inventory.parameters[:_ROWS]:
        table.add_row(*_row(inventory, fact, reached))
    if len(inventory.parameters) > _ROWS:
        table.add_row(f"... and {len(inventory.parameters) - _ROWS} more")
    out = StringIO()
    Console(file=out, width=160, color_system=None, force_terminal=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _row(inventory: Inventory, fact: ParameterFact, reached: frozenset[str] | None) -> tuple[str, ...]:
    group = inventory.groups[fact.group] if fact.group is not None else None
    name = fact.name if not fact.aliases else f"{fact.name} = {', '.join(fact.aliases)}"
    return (
        name,
        "x".join(map(str, fact.shape)) or "1",
        str(fact.dtype).removeprefix("torch."),
        "yes" if fact.requires_grad else "no",
        "none" if group is None else f"{group.optimizer}.{group.index}" + (f" {group.name}" if group.name else ""),
        "" if group is None else f"{group.initial_lr if group.initial_lr is not None else group.lr:g}",
        "" if group is None else f"{group.weight_decay:g}",
        "not yet known" if reached is None else "yes" if fact.name in reached else "no",
    )
