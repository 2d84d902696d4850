"""Tensors that shape the loss like weights but are no parameters."""

import re
from collections.abc import Iterator

from statewise.health.attributes import HiddenTensor
from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, FirstBackward, Influence, Wiring

# Names that state-space models give to what they learn. They set a severity for other people's modules, nothing else.
_LEARNT = re.compile(
    r"(log_?|inv_)?(A|B|C|D|delta|dt|Lambda)(_?(log|bar|real|imag|re|im|bias|raw|inv|\d+))*",
)


def check_contract(facts: Facts, wiring: Wiring) -> Iterator[Finding]:
    """A layer declares that a tensor trains, and holds it as something that cannot."""
    registered = {name for fact in facts.inventory.parameters for name in (fact.name, *fact.aliases)}
    hidden = {tensor.name: tensor for tensor in facts.hidden}
    for name in sorted(facts.declared.trainable - registered):
        tensor = hidden.get(name)
        kind = "a buffer" if tensor is not None and tensor.kind == "buffer" else "a plain tensor"
        what = f"is {kind}, not an nn.Parameter" if tensor is not None else "is not among the registered parameters"
        yield Finding(
            KIND.id,
            Severity.ERROR,
            facts.step,
            (name,),
            f"`{name}` {what}, but the layer declares that it must train: no optimizer can hold it; assign it as "
            "nn.Parameter. A constant on purpose: take it out of the layer's health_contract()",
            {"contract": True},
        )


def check_leaves(facts: Facts, first: FirstBackward) -> Iterator[Finding]:
    """requires_grad tensors in the graph that are no parameters: gradients pile up on them and nobody takes them."""
    leaves = [
        leaf.hidden for leaf in first.aliens
        if leaf.hidden is not None and not leaf.is_parameter and not leaf.in_optimizer
        and not _declared(facts, leaf.hidden)
    ]  # fmt: skip
    if leaves:
        names = tuple(tensor.name for tensor in leaves)
        yield Finding(
            KIND.id,
            Severity.ERROR,
            facts.step,
            names,
            f"{listed(names)} influences the loss and asks for gradients (requires_grad=True) but is a plain tensor, no "
            "nn.Parameter: no optimizer holds it and no checkpoint saves it; wrap it in nn.Parameter. A constant on "
            f"purpose: register_buffer without requires_grad, and health.constants=[{names[0]}]",
            {"shapes": [list(tensor.shape) for tensor in leaves]},
        )


def check_probe(facts: Facts, influence: Influence) -> Iterator[Finding]:
    """Tensors without requires_grad that the loss has a gradient for: they shape it and cannot train."""
    shaping = [t for t in influence.shaping if not _declared(facts, t) and t.name not in facts.declared.trainable]
    # A layer with a contract has said what trains and what is constant: what it left out is a mistake.
    strict = {module.path for module in facts.inventory.modules if module.contract is not None}
    suspects = [tensor for tensor in shaping if _LEARNT.fullmatch(re.findall(r"[A-Za-z]\w*", tensor.name)[-1])]
    ours = [tensor for tensor in suspects if tensor.holder in strict]
    theirs = [tensor for tensor in suspects if tensor.holder not in strict]
    others = [tensor for tensor in shaping if tensor not in suspects]
    for severity, tensors in ((Severity.ERROR, ours), (Severity.WARNING, theirs), (Severity.INFO, others)):
        if not tensors:
            continue
        names = tuple(tensor.name for tensor in tensors)
        kinds = {tensor.kind for tensor in tensors}
        kind = "a buffer" if kinds == {"buffer"} else "a plain tensor" if "buffer" not in kinds else "no nn.Parameter"
        saved = "" if kinds == {"buffer"} else ", not saved, not moved by .to()"
        yield Finding(
            KIND.id,
            severity,
            facts.step,
            names,
            f"{listed(names)} influences the loss but is {kind} (no gradient{saved}): it keeps its first value for ever; "
            f"wrap it in nn.Parameter if it should train. A constant on purpose: register_buffer, and "
            f"health.constants=[{names[0]}]",
            {"shapes": [list(tensor.shape) for tensor in tensors], "kinds": sorted(kinds)},
        )


def _declared(facts: Facts, tensor: HiddenTensor) -> bool:
    return tensor.name in facts.declared.constants


KIND = Kind("plain-tensor", ("R2", "R3", "R4"), Cause.REGISTRATION)
RULES = (
    Rule(KIND, Wiring, check_contract),
    Rule(KIND, FirstBackward, check_leaves),
    Rule(KIND, Influence, check_probe),
)
