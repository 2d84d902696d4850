"""How many windows each part has, and which cause costs how many of them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from statewise.data.datamodule import WindowsDataModule
from statewise.data.segments.cut import Segments, cut
from statewise.data.segments.gaps import Gap, find_gaps
from statewise.data.segments.regular import on_grid
from statewise.data.source import Source
from statewise.data.tables.rows import Rows
from statewise.data.windows.parts import Part, find_parts
from statewise.data.windows.splits import row_blocks


@dataclass(frozen=True)
class PartAccount:
    """One of train, val, test.

    Attributes:
        first, last: the first and last target row of all its windows; None where it has none.
        purged: training windows that would see a row of an evaluation block.
        lost_to_gaps, lost_to_missing: windows that there would be if no time were skipped; and then, if no value were
            missing.
    """

    rows: int
    windows: int
    first: int | None
    last: int | None
    purged: int
    lost_to_gaps: int
    lost_to_missing: int


@dataclass(frozen=True)
class WindowAccount:
    """All parts, and the runs of rows (segments) that windows lie in.

    Attributes:
        needed: rows of one window, with its targets and what they reach.
        runs, short, longest: how many runs, how many of them are shorter than a window, and the rows of the longest.
    """

    rows: Rows
    parts: Mapping[str, PartAccount]
    needed: int
    runs: int
    short: int
    longest: int

    def share_lost(self, cause: str) -> float:
        """Of the windows of all parts, what `gaps` or `missing` cost."""
        lost = sum(getattr(part, f"lost_to_{cause}") for part in self.parts.values())
        kept = sum(part.windows + part.lost_to_gaps + part.lost_to_missing for part in self.parts.values())
        return lost / kept if kept else 0.0


def windows_of(module: WindowsDataModule) -> WindowAccount:
    """Of a data module that is set up."""
    prepared = module.prepared
    return _account(module, prepared.source, prepared.rows, prepared.segments, prepared.parts)


def windows_without_setup(module: WindowsDataModule) -> WindowAccount:
    """The same for one that refuses to be set up, for want of windows in a part.

    Raises:
        ValueError: there is another reason to refuse.
    """
    source = module.source()
    table, _ = on_grid(source.table, module.gap)
    columns = source.features + tuple(name for name in source.targets if name not in source.features)
    ahead = [name for name in source.targets if source.reach and name not in source.features]
    segments = cut(table, module.gap, module.missing, columns, max_gap=module.max_gap, ahead=ahead)
    rows = table.rows
    axis = rows.axis(segments.kept_from)
    naive = table.understood is not None and table.understood.naive
    blocks = row_blocks(module.division.blocks(axis, naive=naive), axis, rows.clock, rows.offsets, segments.kept_from)
    return _account(module, source, rows, segments, _parts(module, source, segments.bounds, blocks, rows))


def _parts(
    module: WindowsDataModule, source: Source, bounds: Int[np.ndarray, "k 2"], blocks: Mapping[str, np.ndarray], rows: Rows
) -> dict[str, Part]:
    keys = {"window": module.window, "horizon": module.horizon, "stride": module.stride, "reach": source.reach}
    return find_parts(bounds, blocks, rows.offsets, **keys)


def _account(
    module: WindowsDataModule, source: Source, rows: Rows, segments: Segments, parts: Mapping[str, Part]
) -> WindowAccount:
    blocks = {name: part.blocks for name, part in parts.items()}
    begins = segments.kept_from
    whole = np.stack([begins, rows.offsets[1:]], axis=1)
    whole = whole[whole[:, 0] < whole[:, 1]]
    gap = module.gap if module.gap.policy == "ignore" else Gap("segment", module.gap.step)
    jumps, _ = find_gaps(rows, gap, module.max_gap)
    cuts = np.sort(np.concatenate([whole[:, 0], jumps[jumps > begins[rows.codes_of(jumps)]]]))
    of_gaps = np.stack([cuts, np.append(cuts[1:], len(rows))], axis=1)
    # A run ends where its series does, whatever was dropped at the start of the next.
    of_gaps[:, 1] = np.minimum(of_gaps[:, 1], rows.offsets[1:][rows.codes_of(of_gaps[:, 0])])
    possible = _parts(module, source, whole, blocks, rows)
    without_gaps = _parts(module, source, of_gaps, blocks, rows)
    accounts = {}
    for name, part in parts.items():
        targets = rows.clock_of(part.starts + module.window)
        ends = part.starts + module.window + module.horizon - 1
        count = len(part.starts)
        accounts[name] = PartAccount(
            part.rows,
            count,
            int(part.starts[np.argmin(targets)]) + module.window if count else None,
            int(ends[np.argmax(targets)]) if count else None,
            part.purged,
            # With a stride, a cut moves the windows behind it: then there may be one more.
            max(0, len(possible[name].starts) - len(without_gaps[name].starts)),
            max(0, len(without_gaps[name].starts) - count),
        )
    lengths = segments.bounds[:, 1] - segments.bounds[:, 0]
    needed = module.window + module.horizon + source.reach
    return WindowAccount(rows, accounts, needed, len(lengths), int((lengths < needed).sum()), int(lengths.max(initial=0)))
