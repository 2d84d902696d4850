"""Which runs there are, and one of them from its name to its score."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from health_cases import look_alikes, ordinary
from health_cases.expected import LATE, LATE_ONSET, NOT_APPLICABLE, Row, expected
from health_cases.families import FAMILIES
from health_cases.faults import FAULTS
from health_cases.fitting import Outcome, fit, prepared, quiet, same_weights
from health_cases.scoring import Cell, Healthy, at_least, judge
from health_cases.set_up import SetUp

SET_UPS = {set_up.id: set_up for set_up in (*look_alikes.SET_UPS, *ordinary.SET_UPS)}
FURTHER = {set_up.id: set_up for set_up in look_alikes.EXTRA}


@dataclass(frozen=True)
class Faulty:
    """A fault in a family: with contract means that layers keep theirs and that the user declares what is meant."""

    fault: str
    family: str
    seed: int
    onset: int = 0
    contract: bool = True

    @property
    def label(self) -> str:
        return f"{self.fault}@{self.onset}" if self.onset else self.fault

    @property
    def row(self) -> Row | None:
        """What is expected; a fault that begins late shows in values only, whatever it is."""
        row = expected(self.fault, self.family, 0 if self.onset else self.seed)
        if row is None or not self.onset:
            return row
        return replace(row, step=max(row.step, 5), structural=False)


@dataclass(frozen=True)
class Sound:
    """A healthy set-up in a family."""

    set_up: str
    family: str
    seed: int
    steps: int = 200
    contract: bool = True
    # It runs without a contract too: with one that declares nothing it would be the same run again.
    both: bool = False


def faulty_cases(families: Iterable[str], seeds: Iterable[int], only: Iterable[str] = ()) -> list[Faulty]:
    """All cells, late ones last; `only` names faults (G1 means its late variant too, G1@10 that alone)."""
    wanted, families, seeds = set(only), list(families), list(seeds)
    every = [Faulty(fault, family, seed) for fault in FAULTS for family in families for seed in seeds]
    every += [Faulty(fault, family, seed, LATE_ONSET) for fault in LATE for family in families for seed in seeds]
    return [case for case in every if not wanted or case.fault in wanted or case.label in wanted]


def sound_cases(
    families: Iterable[str],
    seeds: Iterable[int],
    steps: int,
    only: Iterable[str] = (),
    *,
    bare: bool = True,
    set_ups: Mapping[str, SetUp] = SET_UPS,
) -> list[Sound]:
    """All healthy runs with contract and, with `bare`, without any as well."""
    wanted, families, seeds = set(only), list(families), list(seeds)
    return [
        Sound(set_up.id, family, seed, steps, contract, both=bare)
        for set_up in set_ups.values()
        for family in families
        if family not in set_up.not_for
        for seed in seeds
        if not wanted or set_up.id in wanted
        for contract in ((False, True) if bare else (True,))
    ]


def differs_without_contract(case: Faulty) -> bool:
    """Only our own layers bring contracts; the others are scored once."""
    row = case.row
    return row is not None and not row.contract and case.family == "ssm"


def run_faulty(case: Faulty) -> Cell:
    """Fit the faulty run and, once for all that share it, its healthy twin."""
    row = case.row
    if row is None:
        return Cell(case.label, case.family, case.seed, False, note=NOT_APPLICABLE[case.fault, case.family])
    run = prepared(FAULTS[case.fault], case.family, case.seed, onset=case.onset)
    affected = None if row.affected is None else row.affected(run.task)
    outcome = fit(run, case.seed, contract=case.contract)
    twin = twin_of(FAULTS[case.fault].setting, case)
    notes = [f"training health itself raised {outcome.error}"] if outcome.own_error else []
    notes += [f"its healthy twin is flagged: {f['id']} at step {f['step']}" for f in twin.findings if at_least(f, "warning")]
    notes += [f"its healthy twin raised {twin.error}"] if twin.error else []
    equal = not row.structural and not twin.error and same_weights(outcome, twin)
    return Cell(
        case.label,
        case.family,
        case.seed,
        True,
        **judge(row, case.onset, affected, outcome.findings, twin.findings),
        contract=case.contract,
        equal_weights=equal,
        note="; ".join(notes),
    )


_TWINS: dict[tuple[Any, ...], Outcome] = {}


def twin_of(setting: Any, case: Faulty) -> Outcome:
    """The healthy twin, fitted once for each setting, family, seed and contract."""
    key = setting, case.family, case.seed, case.contract, case.onset if setting else 0
    if key not in _TWINS:
        run = prepared(FAULTS[case.fault], case.family, case.seed, onset=case.onset, broken=False)
        _TWINS[key] = fit(run, case.seed, contract=case.contract)
    return _TWINS[key]


def run_sound(case: Sound) -> Healthy | None:
    """Fit the healthy run; None where the contract would change nothing, as neither layers nor user declare any."""
    with quiet():
        run = (SET_UPS | FURTHER)[case.set_up].build(FAMILIES[case.family], case.seed)
    declares = run.contract or any(hasattr(module, "health_contract") for module in run.task.modules())
    if case.contract and case.both and not declares:
        return None
    outcome = fit(run, case.seed, steps=case.steps, contract=case.contract)
    findings = [finding for finding in outcome.findings if at_least(finding, "warning")]
    note = f"raised {outcome.error}" if outcome.error else ""
    return Healthy(case.set_up, case.family, case.seed, findings, case.contract, note)
