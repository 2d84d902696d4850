"""Steps that work for one number of rows only."""

from collections.abc import Iterator

from statewise.health.findings import Cause, Finding, Severity, listed
from statewise.health.probes.naming import called, intend, subject
from statewise.health.probes.sub_batch import SubBatch
from statewise.health.rule import Kind, Rule
from statewise.health.signals import Facts

KIND = Kind(
    "fixed-batch-size",
    ("B10",),
    Cause.BEHAVIOUR,
    (Severity.ERROR, Severity.WARNING, Severity.INFO),
    meaning="The step works for the batch, and raises for a part of its rows: something has the configured batch size built "
    "in, most often a state or a mask. An error where an epoch ends with a smaller batch, which raises too; a fact where one "
    "batch is the whole data set (a graph); else a warning. The error is quoted, and tensors that have as many rows as the "
    "batch are named.",
    remedy="Take the number of rows from the input: `x.new_zeros(x.shape[0], ...)`.",
    intended='Batches of one size only, in training, validation and use: `{"intended": ("fixed-batch-size",)}` in the '
    "health_contract() of the module, and `drop_last=True` in the loader.",
    example="""
def __init__(self, config):
    ...
    self.h0 = torch.zeros(config.batch_size, 16)  # in forward: h = x.new_zeros(x.shape[0], 16)
""",
)


def check(facts: Facts, seen: SubBatch) -> Iterator[Finding]:
    """What it raises."""
    if not seen.error:
        return
    inside = [name for name in seen.sized if not seen.module or name.startswith(f"{seen.module}.")]
    state = f"; {listed(inside)} has {seen.rows} rows" if inside else ""
    place = called(facts, seen.module)
    last = f"; an epoch ends with a batch of {seen.last} rows, which fails too" if seen.last_error else ""
    severity = Severity.ERROR if seen.last_error else Severity.INFO if seen.whole else Severity.WARNING
    yield KIND.finding(
        severity,
        facts,
        subject(facts, seen.module, tuple(inside)),
        what=f"{place} works for the batch of {seen.rows} rows and fails for {seen.alone} of them ({seen.error}){state}{last}",
        why="a last batch, a validation batch or a single example of another size stops the run or is broadcast",
        remedy=f"make {f'`{inside[0]}`' if inside else 'states and masks'} from the input: x.new_zeros(x.shape[0], ...)",
        intended=f"{intend(KIND.id)}, and drop_last=True in the loader",
        evidence={
            "module": seen.module,
            "error": seen.error,
            "rows": seen.rows,
            "alone": seen.alone,
            "last": seen.last,
            "sized": list(seen.sized),
        },
    )


RULES = (Rule(KIND, SubBatch, check),)
