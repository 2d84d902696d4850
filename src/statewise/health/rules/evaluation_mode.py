"""Parts of the module that take part in training steps in evaluation mode."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.observers.modes import Modes, Sleeper
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "evaluation-mode",
    ("B2",),
    Cause.BEHAVIOUR,
    (Severity.WARNING, Severity.INFO),
    meaning=(
        "A part of the module runs in evaluation mode in a training step. Warning: layers in it compute something else in "
        "training (dropout does nothing, batch norms neither use nor update the statistics of the batch). Info: no such layer "
        "took part, all parameters of the part are frozen, or several batch norms are held still and nothing else is. "
        "Read before the first update, and again whenever a mode has changed."
    ),
    remedy="call `.train()` on the part before the fit; Lightning from 2.2 on keeps the modes that it finds",
    intended='`{"intended": ("evaluation-mode",)}` from `health_contract()`',
    example='self.encoder = AutoModel.from_pretrained("...")  # comes in evaluation mode\nself.encoder.train()',
)


def check(facts: Facts, modes: Modes) -> Iterator[Finding]:
    """Whose mode matters, was off while it ran, and can have been meant to be on."""
    alone = [part for part in modes.asleep if part.norms == (part.path,) and not part.dropping]
    # Somebody went through the norms and held them still: a common choice. One alone is more likely an oversight.
    still = len(alone) == len(modes.asleep) > 1
    awake = [part for part in modes.asleep if not part.frozen and not still and (part.dropping or part.norms)]
    if awake:
        yield _finding(facts, Severity.WARNING, awake)
    if rest := [part for part in modes.asleep if part not in awake]:
        yield _finding(facts, Severity.INFO, rest)


def _finding(facts: Facts, severity: Severity, parts: list[Sleeper]) -> Finding:
    paths = [part.path or part.kind for part in parts]
    parameters = dict.fromkeys(name for part in parts for name in part.parameters or (part.path,))
    dropping = [path or part.kind for part in parts for path in part.dropping]
    norms = [path or part.kind for part in parts for path in part.norms]
    effects = [f"dropout in {listed(dropping)} does nothing"] if dropping else []
    if norms:
        effects.append(f"batch norms ({listed(norms)}) use old statistics and do not update them")
    if severity is Severity.INFO:
        frozen = all(part.frozen for part in parts)
        effects = effects or ["all its parameters are frozen" if frozen else "no layer that depends on the mode took part"]
    one = len(parts) == 1
    return KIND.finding(
        severity,
        facts,
        parameters,
        what=f"{listed(paths)} {'is' if one else 'are'} in evaluation mode in a training step",
        why=", ".join(effects),
        remedy=f"call .train() on {'it' if one else 'them'} before the fit, and after any .eval() of your own",
        intended='return {"intended": ("evaluation-mode",)} from health_contract() of the module',
        evidence={"module": parts[0].path, "modules": paths, "dropout": dropping, "norms": norms},
    )


RULES = (Rule(KIND, Modes, check),)
