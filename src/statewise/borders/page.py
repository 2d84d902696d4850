"""The part of report.html on the borders of epochs: does the training loss jump there, and what makes it do so."""

import html
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from statewise import page_parts as parts
from statewise import runs
from statewise.borders.causes import CAUSES
from statewise.borders.curves import Curve, read_curves


def borders_card(run: runs.Run) -> str:
    """The whole card; empty where the run had no border of epochs."""
    entry = (run.summary or {}).get("epoch_borders")
    if not entry:
        return ""
    jumps = bool(entry.get("jumps"))
    badge = parts.badge("jumps" if jumps else "ok") if entry.get("judged") else ""
    lead = f"<p>{badge}{html.escape(str(entry.get('sentence', '')))}</p>"
    return parts.card("Epoch borders", lead + _said(entry) + parts.drawn(_pictures(read_curves(run.folder), jumps)))


def _said(entry: Mapping[str, Any]) -> str:
    shown = ""
    for cause, found in (entry.get("causes") or {}).items():
        count = f"{found['borders']} {'border' if found['borders'] == 1 else 'borders'}, from epoch {found['first_epoch']} on"
        sentence = str(found["sentence"])
        shown += (
            f'<div class="finding"><p><b>{html.escape(CAUSES.get(cause, cause))}</b> <span class="muted">{count}</span></p>'
            f"<p>{html.escape(sentence[:1].upper() + sentence[1:])}.</p></div>"
        )
    return shown


def _pictures(curves: Sequence[Curve], jumps: bool) -> Iterator[parts.Picture]:
    from statewise.borders.figures import around_borders

    if curves:
        yield (
            "epoch_borders",
            partial(around_borders, curves),
            "Each thin line is one border, in units of its mean loss before; the thick one is their mean, "
            "the band their standard deviation. "
            + (
                "What is level before and not after is the jump."
                if jumps
                else "Noise crosses the line as if it were not there."
            ),
        )
