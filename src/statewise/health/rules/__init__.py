"""The rules, one question a file, each found here by its RULES, in the order in which causes explain one another."""

import pkgutil
from importlib import import_module

from statewise.health.rule import Kind, Rule


def _found() -> tuple[Rule, ...]:
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    rules: list[Rule] = [rule for module in modules for rule in module.RULES]
    return tuple(sorted(rules, key=lambda rule: (rule.kind.cause, rule.kind.id)))


RULES = _found()
KINDS: tuple[Kind, ...] = tuple({rule.kind.id: rule.kind for rule in RULES}.values())
