"""Changes from a row to the next that the precision of a run does not see."""

from statewise.data.datamodule import WindowsDataModule
from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import share

_MUCH = 0.01


def lost_to_rounding(module: WindowsDataModule | None) -> list[Oddity]:
    """One oddity for each column of which scaling has lost changes; as the data module counted them."""
    if module is None:
        return []
    prepared = module.prepared
    bits, steps = 8 * prepared.dtype.itemsize, max(len(prepared.rows) - 1, 1)
    found = []
    for name, count in zip(prepared.segments.names, prepared.vanished, strict=True):
        if count:
            message = f"{name}: float{bits} cannot tell {share(count, steps)} of neighbouring rows apart, which differ"
            severity = "warning" if count > _MUCH * steps else "info"
            found.append(Oddity("lost-to-rounding", severity, count, (), message, "hardware.precision=64-true keeps them"))
    return found
