"""How findings call a module, and the parameters they stand for."""

from statewise.health.signals import Facts


def called(facts: Facts, module: str | None) -> str:
    """A module in a sentence: by its path, the outermost by its class."""
    if module is None:
        return "the step"
    kinds = {fact.path: fact.kind for fact in facts.inventory.modules}
    return f"`{module}`" if module else kinds.get("", "the model")


def subject(facts: Facts, module: str | None, extra: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The tensors named, then the module's parameters; its path where it has none; nothing for the model as a whole."""
    if not module:
        return extra
    own = [fact.name for fact in facts.inventory.parameters if f"{fact.name}.".startswith(f"{module}.")]
    return tuple(dict.fromkeys((*extra, *own))) or (module,)


def intend(kind: str) -> str:
    """How a module says that it is meant."""
    return f'return {{"intended": ("{kind}",)}} from the health_contract() of the module'
