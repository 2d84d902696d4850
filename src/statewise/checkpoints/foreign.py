"""The same parameters under other names: what wrappers put in front of them, and how two sets of names belong together.

torch.compile, DataParallel, DistributedDataParallel, Fabric, FSDP and activation checkpointing each hold a model as an
attribute, and the attribute's name gets into every key. The holder of a model (`model.`, `net.`, `student.`) does the same,
under a name nobody can know; it is found by comparing both sets of names.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

# Attributes under which a wrapper holds what it wraps.
WRAPPERS = frozenset({"_orig_mod", "module", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def bare(name: str) -> str:
    """The name without the wrappers: `module._orig_mod.model.norm_0.weight` becomes `model.norm_0.weight`."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def belong_together(saved: Iterable[str], wanted: Iterable[str]) -> dict[str, str]:
    """Which saved name is which wanted name; names without a partner are left out.

    Wrappers count on neither side. One prefix may stand in front of the saved names, and another one in front of the wanted
    ones, but for all names the same: a stranger that happens to end alike is no partner.

    Raises:
        ValueError: two saved names differ in their wrappers only.
    """
    saved, wanted = list(saved), list(wanted)
    if set(saved) == set(wanted):
        return {name: name for name in saved}
    ours = _by_bare_name(saved)
    theirs = _by_bare_name(wanted)
    before, after = _prefixes(list(ours), list(theirs))
    found = {}
    for name, original in ours.items():
        if name.startswith(before) and (partner := theirs.get(after + name[len(before) :])) is not None:
            found[original] = partner
    return found


def _by_bare_name(names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        if (other := found.setdefault(bare(name), name)) != name:
            raise ValueError(f"{other} and {name} are the same name but for what wrappers add: only one can be meant")
    return found


def _prefixes(saved: list[str], wanted: list[str]) -> tuple[str, str]:
    """What to take off the saved names and to put on instead: what most of them vote for; nothing where few agree."""
    ends: defaultdict[str, list[str]] = defaultdict(list)
    for name in wanted:
        for end in _ends(name):
            ends[end].append(name)
    votes: Counter[tuple[str, str]] = Counter()
    for name in saved:
        shared = next((end for end in _ends(name) if end in ends), None)
        if shared is not None:
            for partner in ends[shared]:
                votes[name.removesuffix(shared), partner.removesuffix(shared)] += 1
    nothing = ("", "")
    best = max(votes, key=lambda pair: (votes[pair], pair == nothing, -len(pair[0] + pair[1])), default=nothing)
    agreed = 2 * votes[best] >= min(len(saved), len(wanted))
    return best if agreed and _holds(best[0], saved) and _holds(best[1], wanted) else nothing


def _holds(prefix: str, names: list[str]) -> bool:
    """Whether a prefix is that of a holder, not of one layer. A file may keep copies of a model under other holders."""
    return 4 * sum(name.startswith(prefix) for name in names) >= len(names)


def _ends(name: str) -> list[str]:
    """The name and what is left of it when its first parts are taken off, longest first."""
    parts = name.split(".")
    return [".".join(parts[first:]) for first in range(len(parts))]
