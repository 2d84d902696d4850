"""Why there are fewer windows than rows would allow."""

from statewise.data.doctor.losses import WindowAccount
from statewise.data.oddities.oddity import Oddity

_CAUSES = (
    ("gaps", "lost to gaps in time", "data.gap.policy=forward_fill, data.max_gap or a smaller data.window keeps more"),
    ("missing", "lost to missing values", "a larger data.missing.max_fill or a smaller data.window keeps more"),
)


def windows_lost(account: WindowAccount | None) -> list[Oddity]:
    """One oddity for each cause, for the windows of all parts together; with the count of each part."""
    if account is None:
        return []
    found = []
    for cause, what, remedy in _CAUSES:
        counts = {name: getattr(part, f"lost_to_{cause}") for name, part in account.parts.items()}
        if total := sum(counts.values()):
            each = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            found.append(Oddity(f"windows-lost-to-{cause}", "info", total, (), f"{total:,} windows are {what}: {each}", remedy))
    if purged := account.parts["train"].purged:
        message = f"{purged:,} training windows are purged, because they would see a row of an evaluation block or its embargo"
        found.append(Oddity("windows-purged", "info", purged, (), message, ""))
    if account.short:
        message = (
            f"{account.short:,} of {account.runs:,} runs of rows are shorter than the {account.needed:,} rows that a window "
            f"needs, the longest run has {account.longest:,}"
        )
        found.append(Oddity("runs-without-window", "info", account.short, (), message, "choose a smaller data.window"))
    return found
