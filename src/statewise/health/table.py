"""The parameter table at the start of a run, as text."""

from statewise.health.parameters import Inventory, ParameterFact

_ROWS = 200
# Column and whether it is a number. A table of rich takes 200 ms for 200 rows, before the first step can be made.
_COLUMNS = {
    "parameter": False,
    "shape": False,
    "dtype": False,
    "trains": False,
    "group": False,
    "lr": True,
    "weight decay": True,
    "in graph": False,
}


def parameter_table(inventory: Inventory, reached: frozenset[str] | None) -> str:
    """Every parameter with its shape, group, lr, weight decay, and whether the first loss reaches it.

    reached: names, or None where no backward pass has been seen yet.
    """
    rows = [tuple(_COLUMNS), *(_row(inventory, fact, reached) for fact in inventory.parameters[:_ROWS])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{len(inventory.parameters)} parameters"]
    for row in rows:
        cells = zip(row, widths, _COLUMNS.values(), strict=True)
        lines.append("  ".join(cell.rjust(width) if number else cell.ljust(width) for cell, width, number in cells).rstrip())
    if len(inventory.parameters) > _ROWS:
        lines.append(f"... and {len(inventory.parameters) - _ROWS} more")
    return "\n".join(lines)


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
