"""What is intended: the patterns of the configuration and the contracts that modules declare about themselves."""

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from statewise.health.parameters import Inventory


@dataclass(frozen=True)
class Unmatched:
    """A declared name that is no name here."""

    key: str
    pattern: str
    nearest: str | None


@dataclass(frozen=True)
class Declared:
    """Full names that are meant to be as they are, and names declared that match nothing."""

    frozen: frozenset[str] = frozenset()
    constants: frozenset[str] = frozenset()
    conditional: frozenset[str] = frozenset()
    trainable: frozenset[str] = frozenset()
    # Parameters that a layer's contract exempts from weight decay.
    no_weight_decay: frozenset[str] = frozenset()
    # Paths of modules whose output at a time step may depend on the input up to that step only.
    causal: frozenset[str] = frozenset()
    # (module path, finding id): "intended" in a module's health_contract.
    intended: frozenset[tuple[str, str]] = frozenset()
    unmatched: tuple[Unmatched, ...] = ()

    def accepts(self, finding: str, parameters: Collection[str]) -> bool:
        """Whether a module declared this finding intended for everything it concerns."""
        return any(
            finding == accepted and all(not path or name.startswith(f"{path}.") for name in parameters)
            for path, accepted in self.intended
        )


def resolve(
    inventory: Inventory,
    hidden: Collection[str],
    *,
    frozen: Sequence[str] = (),
    constants: Sequence[str] = (),
    conditional: Sequence[str] = (),
    causal: Sequence[str] = (),
) -> Declared:
    """Turn patterns and contracts into names.

    A pattern is matched against full names and, where all parameters live under one child (`model.` of a task), against
    names without it. `frozen` and `conditional` also take module names: everything below such a module is meant.
    """
    names = [name for fact in inventory.parameters for name in (fact.name, *fact.aliases)]
    modules = [module.path for module in inventory.modules if module.path]
    prefix = _common_prefix(names)
    unmatched: list[Unmatched] = []

    def match(key: str, patterns: Sequence[str], candidates: Sequence[str]) -> set[str]:
        chosen: set[str] = set()
        for pattern in patterns:
            hits = {name for name in candidates if _matches(name, pattern, prefix)}
            if not hits:
                unmatched.append(Unmatched(key, pattern, _nearest(pattern, candidates, prefix)))
            chosen |= hits
        return chosen

    first = {alias: fact.name for fact in inventory.parameters for alias in (fact.name, *fact.aliases)}

    def parameters_of(key: str, patterns: Sequence[str]) -> frozenset[str]:
        chosen = match(key, patterns, [*names, *modules])
        return frozenset(first[name] for name in names if any(name == c or name.startswith(f"{c}.") for c in chosen))

    resolved_constants = match("health.constants", constants, [*hidden, *names])
    trainable: set[str] = set()
    exempt: set[str] = set()
    intended: set[tuple[str, str]] = set()
    looking_back = match("health.causal", causal, modules)
    for module in inventory.modules:
        contract = module.contract or {}
        for kind, chosen in (("trainable", trainable), ("constants", resolved_constants), ("no_weight_decay", exempt)):
            chosen.update(f"{module.path}.{local}" if module.path else local for local in contract.get(kind, ()))
        looking_back |= {_below(module.path, local) for local in contract.get("causal", ())}
        intended |= {(module.path, finding) for finding in contract.get("intended", ())}
    resolved_frozen = parameters_of("health.frozen", frozen)
    resolved_conditional = parameters_of("health.conditional", conditional)
    return Declared(
        frozen=resolved_frozen,
        constants=frozenset(resolved_constants),
        conditional=resolved_conditional,
        causal=frozenset(looking_back),
        trainable=frozenset(trainable),
        no_weight_decay=frozenset(first.get(name, name) for name in exempt),
        intended=frozenset(intended),
        unmatched=tuple(unmatched),
    )


def _below(path: str, local: str) -> str:
    """A module by its name within another, which is "" or "." for that one itself."""
    local = local.removeprefix(".")
    return f"{path}.{local}" if path and local else path or local


def _matches(name: str, pattern: str, prefix: str) -> bool:
    # Names such as `layers[0].weight` hold brackets, which fnmatch reads as a set of characters: take them literally first.
    short = name.removeprefix(prefix)
    return pattern in (name, short) or fnmatchcase(name, pattern) or fnmatchcase(short, pattern)


def _common_prefix(names: Sequence[str]) -> str:
    heads = {name.partition(".")[0] for name in names if "." in name}
    return f"{heads.pop()}." if len(heads) == 1 and all("." in name for name in names) else ""


def _nearest(pattern: str, candidates: Sequence[str], prefix: str) -> str | None:
    known = {short for name in candidates for short in (name, name.removeprefix(prefix))}
    # A pattern usually names a module, or the end of a name: offer those too.
    known |= {part for name in known for part in (name.rpartition(".")[0], name.rpartition(".")[2])} - {""}
    close = difflib.get_close_matches(pattern.strip("*."), sorted(known), n=1, cutoff=0.5)
    return close[0] if close else None
