"""Parameters that the optimizer would move but whose gradient has no way from the loss."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.flow import Call, Cut, locate
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts, FirstBackward, Steps, Track

# A layer whose output is dropped may be one that is dropped at random.
_STEPS_DROPPED = 3
_CONTAINERS = frozenset({"ParameterList", "ParameterDict", "ModuleList", "ModuleDict"})


def check_first(facts: Facts, first: FirstBackward) -> Iterator[Finding]:
    """Before an optimizer's first update: in the optimizer, not reached by any backward pass, and without a gradient.

    The graph alone is only a suspicion (re-entrant checkpointing hides leaves); no gradient after backward is the proof.
    """
    if first.backwards == 0 or (not first.with_gradient and not first.reached and not first.calls):
        return
    lost = sorted(first.held - first.reached - first.with_gradient - facts.declared.conditional - facts.declared.frozen)
    if not any(call.out_reached for call in first.calls) and not first.reached:
        return  # loss-detached
    for cut in _cuts(facts, lost, first.calls, first.reached | first.with_gradient):
        if cut.kind not in {"absent", "dropped"}:
            yield _finding(facts, cut, first.calls, "")


def check_steps(facts: Facts, steps: Steps) -> Iterator[Finding]:
    """Later: the output of a module is dropped in every batch, or gradients stopped coming."""
    stopped = [t for t in steps.tracks if t.none_unusual and t.ever_alive and steps.fresh]
    dropped = [t for t in steps.tracks if t.none_run >= _STEPS_DROPPED and not t.ever_alive]
    for tracks, late in ((stopped, True), (dropped, False)):
        wanted = [track for track in tracks if track.name not in facts.declared.conditional]
        by_name = {track.name: track for track in wanted}
        for cut in _cuts(facts, list(by_name), steps.calls, steps.reached):
            if cut.kind != "absent" and (late or cut.kind == "dropped"):
                yield _finding(facts, cut, steps.calls, _since(by_name[cut.parameters[0]], late))


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


def _finding(facts: Facts, cut: Cut, calls: tuple[Call, ...], since: str) -> Finding:
    names = cut.parameters
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
    elif cut.kind == "dropped":
        where = f"nothing that reaches the loss uses the output of `{cut.before}`"
        fix = "use the output, or remove the module"
    else:
        owner = f"`{cut.before}`" if cut.before else "the module"
        where = (
            f"other parameters of {owner} are reached, so within its forward this one is not used, or its value is taken "
            "out of the graph"
        )
        fix = "use the tensor itself, not float(), .item(), .detach() or a new tensor made of its value"
    return Finding(
        KIND.id,
        Severity.ERROR,
        facts.step,
        names,
        f"{subject}{since}: {where}; {fix}. Intended: requires_grad_(False), or health.conditional=[{names[0]}]",
        {"kind": cut.kind, "before": cut.before, "after": cut.after, "calls": len(calls)},
    )


KIND = Kind("graph-cut", ("G1", "G2", "G4"), Cause.GRAPH)
RULES = (
    Rule(KIND, FirstBackward, check_first),
    Rule(KIND, Steps, check_steps),
)
