"""What a run says of bars that cannot be, or in which nothing was traded, before it trains on them."""

from dataclasses import replace
from itertools import chain

from statewise.choices import one_of
from statewise.data.oddities.bars import bars
from statewise.data.oddities.oddity import Oddity
from statewise.data.oddities.subject import Subject
from statewise.data.oddities.zero_volume import is_volume, zero_volume
from statewise.data.segments.gaps import Gap
from statewise.data.segments.missing import Missing
from statewise.data.tables.table import Table

POLICIES = ("keep", "error")


def told(table: Table, policy: str) -> Table:
    """The table with a sentence for each kind of odd bars among the columns that were read.

    Args:
        policy: of prices outside of their own high and low: `keep` them, or `error`.

    Raises:
        ValueError: there are some, under the policy `error`.
    """
    one_of("data.impossible_bars", policy, POLICIES)
    subject = Subject(table, None, Gap(), None, Missing(), {})
    volumes = (zero_volume(subject, name, table.read(name)) for name in table.columns if is_volume(name))
    found = list(chain(bars(subject), *volumes))
    if policy == "error" and (impossible := [oddity for oddity in found if oddity.severity == "error"]):
        raise ValueError(
            f"data.path: {_sentence(impossible[0])}: correct the file, or set data.impossible_bars=keep to train on such bars"
        )
    return replace(table, notes=(*table.notes, *map(_sentence, found)))


def _sentence(oddity: Oddity) -> str:
    places = ", ".join(place.time + (f" ({place.series})" if place.series else "") for place in oddity.first)
    return f"{oddity.message}, first: {places}"
