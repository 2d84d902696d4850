"""report.html: a run on one page. Pictures, styles and tables are inside the file; it refers to nothing outside."""

import html
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from statewise import page_parts as parts
from statewise import runs
from statewise.borders.page import borders_card
from statewise.health_page import health_card
from statewise.returns_tables import R2_HEADER, each_return, r2_cells, trading
from statewise.summary import RETURN_FIGURES, number, percent, result_rows, verdict_on_result

IDENTIFICATION = {
    "eigenvalue_error": "largest error of an eigenvalue",
    "markov_error": "error of the Markov parameters",
    "simulation_nrmse": "NRMSE of the free simulation",
}


def build_report(folder: Path | str) -> Path:
    """Write report.html into a run folder from the files in it, whatever the run has left; returns its path.

    Raises: FileNotFoundError where the folder is no run folder.
    """
    run = runs.load_run(folder)
    path = run.folder / runs.REPORT
    with runs.atomic_file(path) as file:
        file.write(page(run).encode("utf-8"))
    return path


def page(run: runs.Run) -> str:
    """The whole report as HTML."""
    summary = run.summary
    health = health_card(run)
    # What stops a run is the first thing to read about it.
    unhealthy = summary is not None and summary["status"] == "unhealthy"
    sections = [_head(run), _fault(summary or {}), health if unhealthy else ""]
    if summary is not None:
        sections += [_results(summary), _known_answers(summary), _returns(summary), _targets(summary)]
    sections += [
        parts.card("Pictures", parts.drawn(pictures(run))),
        "" if unhealthy else health,
        borders_card(run),
        _configuration(run),
    ]
    if summary is not None:
        sections.append(_versions(summary))
    title = html.escape(_title(run))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{parts.STYLE}</style></head>\n'
        f"<body><main>\n{''.join(sections)}</main></body></html>\n"
    )


def pictures(run: runs.Run) -> Iterator[parts.Picture]:
    """What can be drawn from this run."""
    from statewise import figures

    metrics, summary = run.metrics, run.summary or {}
    if metrics is not None and {"train/loss", "val/loss", "val/mse"} & set(metrics.columns):
        baselines = {
            name.replace("_", " "): entry["mse"]
            for name, entry in summary.get("baselines", {}).items()
            if entry and entry["mse"] is not None
        }
        mse = summary["test"]["mse"] if summary else None
        yield (
            "losses",
            lambda: figures.losses(metrics, baselines=baselines, test_mse=mse),
            "Both fall without a jump where an epoch begins; a validation curve that rises again is overfitting.",
        )
    predicted = run.predictions
    if predicted is not None and len(predicted):
        for step in sorted({1, int(predicted["step"].max())}):  # type: ignore[arg-type]
            yield (
                f"predictions_{step}",
                partial(figures.predictions, predicted, step=step),
                "The first test rows, in original units. A gap in the truth was never observed and is not scored.",
            )
    if run.eigenvalues:
        yield (
            "eigenvalues",
            lambda: figures.eigenvalues(run.eigenvalues),
            "Close to the circle is a long memory, close to the centre a short one; outside the state explodes.",
        )
    radii = _radii(run)
    if radii:
        threshold = _setting(run.config, "callbacks", "spectral_projection", "threshold", default=1.0)
        yield (
            "spectral_radii",
            lambda: figures.spectral_radii(radii, threshold=float(threshold)),
            "At the dashed line the projection steps in after the optimiser step and brings the radius back below it.",
        )
    norms = run.gradient_norms
    if norms is not None:
        yield (
            "gradient_norms",
            lambda: figures.gradient_norms(*norms),
            "Every parameter has a row. A row that is far darker than the others, or has no colour, is not learning.",
        )
    if metrics is not None:
        steps, values = figures.logged(metrics, "lr")
        if len(steps):
            yield (
                "learning_rate",
                lambda: figures.learning_rate(steps, values),
                "Warm-up and decay, as they were applied.",
            )


def _title(run: runs.Run) -> str:
    return f"{run.summary['model']} on {run.summary['data']}" if run.summary else run.folder.name


def _head(run: runs.Run) -> str:
    summary = run.summary
    if summary is None:
        lead, facts, badges = "The run left no summary: it was broken off.", [], parts.badge("interrupted")
    else:
        lead = verdict_on_result(summary) + "."
        badges = parts.badge(summary["status"]) + parts.badge(summary["health"]["verdict"])
        seconds, speed = summary["seconds"]["fit"], summary["samples_per_second"]
        facts = [
            f"{summary['parameters']:,} parameters" if summary["parameters"] is not None else "",
            f"{summary['steps']:,} optimiser steps",
            f"{seconds:,.1f} s of training" if seconds is not None else "",
            f"{speed:,.0f} samples/s" if speed is not None else "",
            f"seed {summary['seed']}" if summary["seed"] is not None else "",
            f"continues {summary['parent']}" if "parent" in summary else "",
        ]
    line = html.escape(" · ".join(fact for fact in [*facts, "/".join(run.folder.parts[-2:])] if fact))
    return (
        f"<header><h1>{html.escape(_title(run))}</h1><p>{badges}</p>"
        f'<p class="lead">{html.escape(lead)}</p><p class="muted">{line}</p></header>\n'
    )


def _fault(summary: Mapping[str, Any]) -> str:
    if not (fault := summary.get("fault")):
        return ""
    name, what = html.escape(fault["name"]), html.escape(fault["what"])
    return f'<section class="card banner">This run was broken on purpose: fault={name} <span>{what}</span></section>\n'


def _results(summary: Mapping[str, Any]) -> str:
    rows = [(row.name, number(row.mse), number(row.mae), percent(row.skill)) for row in result_rows(summary)]
    note = (
        '<p class="muted">Mean over the targets, scaled units, every predictor on the same test rows. '
        "Skill: the share of the best baseline's MSE that is saved.</p>"
    )
    return parts.card("Result", note + parts.table(("", "MSE", "MAE", "skill"), rows, marked=0))


def _known_answers(summary: Mapping[str, Any]) -> str:
    """What can be said only where the data has a known answer: the system found, the planted signal found."""
    rows = []
    for key, value in (summary.get("identification") or {}).items():
        rows.append((IDENTIFICATION.get(key, key.replace("_", " ")), number(value), "", "0"))
    for key, name in RETURN_FIGURES.items():
        entry = summary["test"].get(key)
        if entry:
            error = f"± {number(entry.get('se'))}" if entry.get("se") is not None else ""
            answer = number(entry["planted"]) if entry.get("planted") is not None else ""
            rows.append((name, number(entry.get("value")), error, answer))
    header = ("", "found", "standard error", "true")
    kept = [index for index in range(4) if index == 0 or any(row[index] for row in rows)]
    table = parts.table([header[index] for index in kept], [[row[index] for index in kept] for row in rows])
    known = summary.get("identification") or any(row[3] for row in rows)
    return parts.card("Against the known answer" if known else "Forecasts of returns", table if rows else "")


def _returns(summary: Mapping[str, Any]) -> str:
    """Each target of returns where there are several, and what trading them would have earned."""
    cards = ""
    for found in (each_return(summary["test"]), trading(summary["test"])):
        if found is not None:
            cards += parts.card(found.title.capitalize(), parts.table(("", *found.header), found.cells))
    return cards


def _targets(summary: Mapping[str, Any]) -> str:
    columns = ("mse", "mae", "mse_original_units", "mae_original_units")
    test = summary["test"]
    beside = {name: r2_cells(test, name) for name in test["per_target"]}
    extra = R2_HEADER if any(beside.values()) else ()
    rows = [
        (name, *(number(errors[key]) for key in columns), *(beside[name] or [""] * len(extra)))
        for name, errors in test["per_target"].items()
    ]
    if len(rows) > 1:
        rows.append(("mean", *(number(test[key]) for key in columns), *[""] * len(extra)))
    header = ("target", "MSE", "MAE", "MSE, original units", "MAE, original units", *extra)
    table = parts.table(header, rows, marked=len(rows) - 1 if len(rows) > 1 else None)
    return parts.card("Errors of each target", table if rows else "")


def _configuration(run: runs.Run) -> str:
    overrides = f"<p class='muted'>Overrides: {html.escape(' '.join(run.overrides))}</p>" if run.overrides else ""
    text = html.escape(OmegaConf.to_yaml(OmegaConf.create(run.config)))
    details = f"<details><summary>Configuration</summary>{overrides}<pre>{text}</pre></details>"
    return f'<section class="card">{details}</section>\n'


def _versions(summary: Mapping[str, Any]) -> str:
    text = " · ".join(f"{name} {version}" for name, version in summary["versions"].items())
    return f'<p class="muted">{html.escape(text)}</p>\n'


def _radii(run: runs.Run) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """From the metrics, where every logged step is; else from the eigenvalues themselves."""
    from statewise import figures

    prefix = "spectral_radius/"
    columns = run.metrics.columns if run.metrics is not None else []
    radii = {
        name.removeprefix(prefix): figures.logged(run.metrics, name)
        for name in columns
        if run.metrics is not None and name.startswith(prefix)
    }
    radii = {layer: (steps, values) for layer, (steps, values) in radii.items() if len(steps)}
    if radii:
        return radii
    by_layer: dict[str, list[tuple[int, float]]] = {}
    for step, layer, values in run.eigenvalues:
        by_layer.setdefault(layer, []).append((step, float(np.abs(values).max(initial=0.0))))
    return {layer: (np.array(points)[:, 0], np.array(points)[:, 1]) for layer, points in by_layer.items()}


def _setting(config: Mapping[str, Any], *keys: str, default: float) -> float:
    value: Any = config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return default if value is None else value
