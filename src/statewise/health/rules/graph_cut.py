"""Parameters that the optimizer would move but whose gradient has no way from the loss."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.graph.flow import Call, Cut, locate
from statewise.health.graph.signals import Reach
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, FirstBackward, Steps, Track

KIND = Kind(
    "graph-cut",
    ("G1", "G2", "G4"),
    Cause.GRAPH,
    (Severity.ERROR, Severity.WARNING),
    meaning="Parameters are in the optimizer, but the loss does not reach them and they have no gradient after the backward "
    "pass. Forward hooks of one batch say where the way is cut: between two modules, inside one, with autograd off, output "
    "dropped (said after three steps, or at once where a copy shows that the loss changes with the values), or for this "
    "parameter only. Later in a run: no gradient in a run of steps that is "
    "unusual for this parameter; a warning where an output is dropped that was used before.",
    remedy="Remove detach(), .data, .item(), numpy, no_grad, argmax, round or the cast to integers at that place.",
    intended="`requires_grad_(False)`, or `health.conditional` for what takes part in some batches only.",
    example="h = self.encoder(x)\ny = self.head(h.detach())  # the encoder cannot learn",
)
# Steps without a gradient after which a cut in the middle of a run is no chance.
_STEPS_STOPPED = 5
# A layer whose output is dropped, or that passes its input on, may be one that is left out at random.
_DOUBTFUL = frozenset({"dropped", "unread"})
_STEPS_DROPPED = 3
# Where the calls do not show what became of the gradient, but the loss changes with the values: how it is used, and the remedy.
_USED = {
    "dropped": "the output of `{}` is used, but taken out of the graph where no module is called",
    "unread": "`{}` uses it, but takes it out of the graph",
    "absent": "they are used outside of the graph, where no module is seen being called (compiled code hides its modules)",
}
_BLIND = frozenset(_USED)
_FIX = {
    "dropped": "remove the detach(), .data, .item(), numpy or no_grad behind it",
    "unread": "use the tensor itself in its forward, not float(), .item(), .detach(), .data or a new tensor made of its value",
    "absent": "remove the detach(), .data, .item(), numpy or no_grad where it is used",
}
_CONTAINERS = frozenset({"ParameterList", "ParameterDict", "ModuleList", "ModuleDict"})


def check_first(facts: Facts, first: FirstBackward) -> Iterator[Finding]:
    """Before an optimizer's first update: in the optimizer, not reached by any backward pass, and without a gradient.

    The graph alone is only a suspicion (re-entrant checkpointing hides leaves); no gradient after backward is the proof.
    """
    if first.backwards == 0 or (not first.with_gradient and not first.reached and not first.calls):
        return
    # A compiled piece of the graph names all that it is given, also what it has no gradient for.
    reached = first.reached - first.read
    lost = sorted(first.held - reached - first.with_gradient - facts.declared.conditional - facts.declared.frozen)
    if not any(call.out_reached for call in first.calls) and not first.reached:
        return  # loss-detached
    for cut in _cuts(facts, lost, first.calls, reached | first.with_gradient):
        read = not first.read.isdisjoint(cut.parameters)
        if read or (cut.kind != "absent" and cut.kind not in _DOUBTFUL):
            yield _finding(facts, cut, first.calls, "", read=read)


def check_steps(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """Later: the output of a module is dropped in every batch, or gradients stopped coming."""
    stopped = [t for t in steps.tracks if t.none_unusual and t.ever_alive and steps.fresh]
    dropped = [t for t in steps.tracks if t.none_run >= _STEPS_DROPPED and not t.ever_alive]
    for tracks, late in ((stopped, True), (dropped, False)):
        wanted = [track for track in tracks if track.name not in facts.declared.conditional]
        by_name = {track.name: track for track in wanted}
        for cut in _cuts(facts, list(by_name), steps.calls, steps.reached):
            if cut.kind != "absent" and (late or cut.kind in _DOUBTFUL):
                yield _finding(facts, cut, steps.calls, _since(by_name[cut.parameters[0]], late), late)


def check_reach(facts: Facts, reach: Reach) -> Iterator[Finding]:
    """Later as well: gradients that are zero because nobody clears them to None, and a look at the graph proves it."""
    stopped = {n: run for n, run in reach.stopped.items() if run >= _STEPS_STOPPED and n not in facts.declared.conditional}
    if reach.empty:
        return  # loss-detached
    for cut in _cuts(facts, list(stopped), reach.calls, reach.reached):
        if cut.kind != "absent":
            run = stopped[cut.parameters[0]]
            since = f" since step {reach.steps + 1 - run}: {run} steps running without a gradient"
            yield _finding(facts, cut, reach.calls, since, late=True)


def _since(track: Track, late: bool) -> str:
    if late:
        return f" since step {track.steps - track.none_run}: {track.none_run} steps running without a gradient"
    return f" in {track.none_run} of {track.steps} steps"


def _cuts(facts: Facts, lost: list[str], calls: tuple[Call, ...], alive: frozenset[str]) -> list[Cut]:
    affected: dict[str, list[str]] = {}
    reached: set[str] = set()
    kinds = {module.path: module.kind for module in facts.inventory.modules}
    for fact in facts.inventory.parameters:
        owner = _owner(fact.module, kinds)
        if fact.name in lost:
            affected.setdefault(owner, []).append(fact.name)
        elif fact.name in alive:
            reached.add(owner)
    return locate(calls, affected, frozenset(reached))


def _owner(path: str, kinds: dict[str, str]) -> str:
    """The module that uses the parameters of `path`: containers are never called themselves."""
    while path and kinds.get(path) in _CONTAINERS:
        path = path.rpartition(".")[0]
    return path


def _finding(facts: Facts, cut: Cut, calls: tuple[Call, ...], since: str, late: bool = False, read: bool = False) -> Finding:
    names = cut.parameters
    # An auxiliary output may have done its duty.
    severity = Severity.WARNING if late and cut.kind in _DOUBTFUL else Severity.ERROR
    subject = f"{listed(names)} {'is' if len(names) == 1 else 'are'} in the optimizer, but no gradient path leads to the loss"
    if cut.kind == "between":
        where = f"the graph is cut between `{cut.before}` (output has a gradient) and `{cut.after}` (input has none)"
        fix = "remove the detach(), .data, .item(), numpy or no_grad there"
    elif cut.kind == "inside":
        where = f"the graph is cut inside `{cut.after}`, whose input has a gradient that its output does not pass back"
        fix = "remove the detach(), .data, .item(), numpy or no_grad in its forward"
    elif cut.kind == "disabled":
        where = f"`{cut.before}` ran with autograd disabled"
        fix = "take it out of no_grad or inference_mode"
    elif cut.kind == "lost":
        where = f"the gradient is lost inside `{cut.before}`, whose output has none"
        fix = "look in its forward for detach(), .data, .item(), numpy, argmax, round or an integer cast"
    elif read and cut.kind in _BLIND:
        values = "its value" if len(names) == 1 else "their values"
        where, fix = f"the loss changes with {values}, so {_USED[cut.kind].format(cut.before)}", _FIX[cut.kind]
    elif cut.kind == "dropped":
        where = (
            f"no registered module behind `{cut.before}` passes a gradient back to its output: it is not used, or taken out of "
            "the graph where no module is called"
        )
        fix = "use the output without detach(), .data, .item() or no_grad, or remove the module"
    elif cut.kind == "unread":
        they, them = ("it has", "it") if len(names) == 1 else ("they have", "them")
        where = f"the output of `{cut.before}` arrives at the loss, but {they} no part in it"
        fix = f"use {them} in its forward, as a tensor (no .item(), .detach() or .data), or remove {them}"
    else:
        owner = f"`{cut.before}`" if cut.before else "the module"
        where = (
            f"other parameters of {owner} are reached, so within its forward this one is not used, or its value is taken "
            "out of the graph"
        )
        fix = "use the tensor itself, not float(), .item(), .detach() or a new tensor made of its value"
    return KIND.finding(
        severity,
        facts,
        names,
        what=f"{subject}{since}",
        why=f"they cannot learn; {where}" if len(names) > 1 else f"it cannot learn; {where}",
        remedy=fix,
        intended=f"requires_grad_(False), or health.conditional=[{names[0]}]",
        evidence={"kind": cut.kind, "before": cut.before, "after": cut.after, "calls": len(calls)},
    )


RULES = (
    Rule(KIND, FirstBackward, check_first),
    Rule(KIND, Steps, check_steps),
    Rule(KIND, Reach, check_reach),
)
