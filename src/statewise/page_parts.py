"""The building blocks of a page: its style, cards, tables, badges and pictures. Everything given to them is escaped."""

import html
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

Picture = tuple[str, Callable[[], "Figure"], str]
"""Its name, how to draw it, and a sentence on how to read it."""

STYLE = """
:root { color-scheme: light; --ink: #1f2933; --muted: #5d6b78; --grid: #d8dde3; --page: #f4f6f8; --card: #ffffff;
  --edge: #1f293333; --good: #0b7a4f; --warn: #9a6200; --bad: #b3261e; --accent: #2a78d6; }
@media screen and (prefers-color-scheme: dark) { :root { color-scheme: dark; --ink: #e6eaee; --muted: #9aa7b4;
  --grid: #38424d; --page: #12171c; --card: #1b2229; --edge: #00000088; --good: #4cc38a;
  --warn: #e5a93c; --bad: #ff7b72; --accent: #6cb0ff; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 12px; }
p { margin: 0 0 8px; overflow-wrap: anywhere; }
.muted, figcaption { color: var(--muted); }
.lead { font-size: 17px; }
.card { background: var(--card); border: 1px solid var(--grid); border-radius: 10px; padding: 18px 20px; margin: 16px 0;
  overflow-x: auto; }
.badge { display: inline-block; border: 1px solid currentColor; border-radius: 999px; padding: 1px 11px;
  font-size: 13px; font-weight: 600; margin-right: 6px; white-space: nowrap; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.scroll, .picture { overflow-x: auto; background: linear-gradient(90deg, var(--card) 40%, transparent) 0 0 / 28px 100%,
  linear-gradient(270deg, var(--card) 40%, transparent) 100% 0 / 28px 100%, linear-gradient(90deg, var(--edge), transparent)
  0 0 / 10px 100%, linear-gradient(270deg, var(--edge), transparent) 100% 0 / 10px 100%; background-repeat: no-repeat;
  background-attachment: local, local, scroll, scroll; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { color: var(--muted); font-weight: 500; font-size: 13px; }
th, td { text-align: right; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--card); }
th:last-child, td:last-child { padding-right: 0; }
tr:last-child td { border-bottom: 0; }
tr.model td { font-weight: 600; }
table.text th, table.text td { text-align: left; vertical-align: top; white-space: normal; }
table.text td:nth-child(-n+3) { white-space: nowrap; }
table.text td:last-child, table.text td:nth-child(n+4) { white-space: normal; overflow-wrap: anywhere; min-width: 200px; }
figure { margin: 0 0 26px; } figure:last-child { margin-bottom: 0; }
figure svg { width: 100%; height: auto; display: block; }
figcaption { font-size: 13px; margin-top: 4px; }
.finding { border-top: 1px solid var(--grid); padding: 12px 0 4px; }
.finding p { margin-bottom: 4px; }
.names { font-size: 13px; }
code { font: 0.92em ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.finding + figure { margin-top: 18px; }
.banner { border-left: 4px solid var(--warn); font-weight: 600; }
.banner span { font-weight: 400; }
pre { margin: 0; font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; }
details[open] summary { margin-bottom: 10px; }
@media screen and (max-width: 600px) { main { padding: 18px 10px 40px; } .card { padding: 14px 12px; }
  h1 { font-size: 22px; } .lead { font-size: 16px; } table { font-size: 14px; } th, td { padding-right: 12px; }
  .picture svg { min-width: 560px; } }
@media print { @page { margin: 14mm; } body { background: none; font-size: 12px; } main { max-width: none; padding: 0; }
  .card { border: 0; border-radius: 0; padding: 0; margin: 18px 0; overflow: visible; }
  .scroll, .picture { overflow: visible; background: none; }
  main { print-color-adjust: exact; -webkit-print-color-adjust: exact; } .badge { font-size: 11px; padding: 0 8px; }
  .lead { font-size: 14px; } table { font-size: 11px; } th { font-size: 10px; white-space: normal; }
  th, td { padding: 3px 8px 3px 0; }
  h2 { break-after: avoid; } figure, tr, .finding { break-inside: avoid; } figure svg { max-height: 220mm; } }
"""
VERDICT_COLOURS = {"healthy": "good", "warning": "warn", "error": "bad", "info": "muted", "not_checked": "warn", "ok": "good"}


def badge(text: str) -> str:
    return f'<span class="badge {VERDICT_COLOURS.get(text, "bad")}">{html.escape(text.replace("_", " "))}</span>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, text: bool = False, marked: int | None = None) -> str:
    """A table of escaped cells; `text` sets it for sentences, `marked` is the row to stress."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = ""
    for index, row in enumerate(rows):
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        body += ('<tr class="model">' if index == marked else "<tr>") + cells + "</tr>"
    start = '<table class="text">' if text else "<table>"
    return f'<div class="scroll">{start}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def card(title: str, content: str) -> str:
    return f'<section class="card"><h2>{html.escape(title)}</h2>{content}</section>\n' if content else ""


def drawn(pictures: Iterable[Picture]) -> str:
    """The pictures one below the other, each with its sentence."""
    from statewise import figures

    parts = []
    for name, draw, caption in pictures:
        try:
            drawing = figures.svg(draw())
        except Exception:
            # A picture of a strange run must never cost the report of that run.
            log.warning("the picture %s could not be drawn", name, exc_info=True)
            continue
        picture = f'<div class="picture">{drawing}</div>'
        parts.append(f'<figure id="{name}">{picture}<figcaption>{html.escape(caption)}</figcaption></figure>')
    return "".join(parts)
