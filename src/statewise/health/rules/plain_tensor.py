"""Tensors that shape the loss like weights but are no parameters."""

import re
from collections.abc import Iterator

from statewise.health.attributes import HiddenTensor
from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, FirstBackward, Influence, Wiring

KIND = Kind(
    "plain-tensor",
    ("R2", "R3", "R4"),
    Cause.REGISTRATION,
    (Severity.ERROR, Severity.WARNING, Severity.INFO),
    meaning=(
        "A tensor that is no parameter shapes the loss. Error: it asks for gradients, or its layer's contract says that it "
        "trains or leaves it out although it is named like a learnt quantity. Warning: the loss has a gradient for it and it "
        "is named like what state-space models learn (A, B, C, delta, dt, ...). Info: any other such tensor. The evidence "
        "are the leaves of the loss's graph, and one step of a copy of the module in which such tensors ask for gradients."
    ),
    remedy="wrap it in `nn.Parameter`",
    intended="`register_buffer`, and `health.constants`",
    example="self.A = torch.randn(d_state)  # not trained, not saved: nn.Parameter(torch.randn(d_state))",
)

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
        yield KIND.finding(
            Severity.ERROR,
            facts,
            (name,),
            what=f"`{name}` {what}, but the layer declares that it must train",
            why="no optimizer can hold it",
            remedy="assign it as nn.Parameter",
            intended="take it out of the layer's health_contract()",
            evidence={"contract": True},
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
        yield KIND.finding(
            Severity.ERROR,
            facts,
            names,
            what=f"{listed(names)} influences the loss and asks for gradients (requires_grad=True) but is a plain tensor, no "
            "nn.Parameter",
            why="no optimizer holds it and no checkpoint saves it",
            remedy="wrap it in nn.Parameter",
            intended=f"register_buffer without requires_grad, and health.constants=[{names[0]}]",
            evidence={"shapes": [list(tensor.shape) for tensor in leaves]},
        )


def check_probe(facts: Facts, influence: Influence) -> Iterator[Finding]:
    """Tensors without requires_grad that the loss has a gradient for: they shape it and cannot train."""
    shaping = [t for t in influence.shaping if not _declared(facts, t) and t.name not in facts.declared.trainable]
    # A layer with a contract has said what trains and what is constant: what it left out is a mistake.
    strict = {module.path for module in facts.inventory.modules if module.contract is not None}
    named = [tensor for tensor in shaping if _LEARNT.fullmatch(_local(tensor.name))]
    ours = [tensor for tensor in named if tensor.holder in strict]
    theirs = [tensor for tensor in named if tensor.holder not in strict and _suspicious(facts, tensor)]
    others = [tensor for tensor in shaping if tensor not in ours and tensor not in theirs]
    for severity, tensors in ((Severity.ERROR, ours), (Severity.WARNING, theirs), (Severity.INFO, others)):
        if not tensors:
            continue
        names = tuple(tensor.name for tensor in tensors)
        kinds = {tensor.kind for tensor in tensors}
        kind = "a buffer" if kinds == {"buffer"} else "a plain tensor" if "buffer" not in kinds else "no nn.Parameter"
        saved = "" if kinds == {"buffer"} else ", not saved, not moved by .to()"
        yield KIND.finding(
            severity,
            facts,
            names,
            what=f"{listed(names)} influences the loss but is {kind} (no gradient{saved})",
            why="it keeps its first value for ever",
            remedy="wrap it in nn.Parameter if it should train",
            intended=f"register_buffer, and health.constants=[{names[0]}]",
            evidence={"shapes": [list(tensor.shape) for tensor in tensors], "kinds": sorted(kinds)},
        )


def _suspicious(facts: Facts, tensor: HiddenTensor) -> bool:
    """Whether a learnt quantity's name is evidence in somebody's module.

    A number on its own is a constant (a step size). Somebody who registers a buffer has thought of it: one letter for one
    that acts on raw data, before any parameter, is as likely a fixed projection (Fourier features), unless the module has
    other names of a state-space model.
    """
    if not tensor.shape:
        return False
    local = _local(tensor.name)
    if tensor.kind != "buffer" or not re.fullmatch(r"[A-D]|delta|dt", local):
        return True
    beside = {fact.local for fact in facts.inventory.parameters if fact.module == tensor.holder}
    beside |= {_local(other.name) for other in facts.hidden if other.holder == tensor.holder} - {local}
    before = [module for module in facts.inventory.modules if module.own]
    first = next((module.path for module in before), tensor.holder)
    order = [module.path for module in facts.inventory.modules]
    later = tensor.holder in order and order.index(first) < order.index(tensor.holder)
    return later or any(_LEARNT.fullmatch(name) for name in beside)


def _local(name: str) -> str:
    return str(re.findall(r"[A-Za-z]\w*", name)[-1])


def _declared(facts: Facts, tensor: HiddenTensor) -> bool:
    return tensor.name in facts.declared.constants


RULES = (
    Rule(KIND, Wiring, check_contract),
    Rule(KIND, FirstBackward, check_leaves),
    Rule(KIND, Influence, check_probe),
)
