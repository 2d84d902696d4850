"""What the metadata of an exchanged file say, each part checked: another program has written it."""

import json
from collections.abc import Mapping
from typing import Any

import torch

from statewise import __version__
from statewise.data.form import Form, Step
from statewise.data.preparation.scaling import StandardScaler

FORMAT, FORMAT_VERSION = "statewise.origin", "1"


def form_of(state: Mapping[str, Any]) -> Form:
    """The form in the metadata; features, targets and horizon must be there.

    Raises:
        ValueError: something is missing, superfluous or of another type; it is named.
    """
    known = {name: state[name] for name in Form.__dataclass_fields__ if name in state}
    if extra := sorted(set(state) - set(known)):
        raise ValueError(f"the form in its metadata has unknown entries: {', '.join(extra)}")
    for name in ("features", "targets"):
        value = known.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            raise ValueError(f"the form in its metadata must have {name}, a list of names, got {value!r}")
    horizon = known.get("horizon")
    if not isinstance(horizon, int) or horizon < 1:
        raise ValueError(f"the form in its metadata must have horizon, the rows predicted after each row, got {horizon!r}")
    step = known.get("step")
    try:
        known["step"] = None if step is None else Step(**step)
    except TypeError as error:
        raise ValueError(f"the step of the form in its metadata must be null or {{length, usual}}, got {step!r}") from error
    return Form(
        **{"targets_are_levels": True, **known, "features": tuple(known["features"]), "targets": tuple(known["targets"])}
    )


def scaler_of(state: Mapping[str, Any], form: Form) -> StandardScaler:
    """The scaler in the metadata, its columns in our order: the features, then the targets that are none.

    Raises:
        ValueError: a column or a number is missing; it is named.
    """
    names, series = state.get("names"), state.get("series") or []
    order = [*form.features, *(name for name in form.targets if name not in form.features)]
    if not isinstance(names, list) or set(names) != set(order) or len(names) != len(order):
        raise ValueError(f"the scaler in its metadata must have the names {', '.join(order)}, got {names!r}")
    columns = [names.index(name) for name in order]
    values = {}
    for key in ("mean", "scale"):
        try:
            table = torch.tensor(state.get(key), dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{key} of the scaler in its metadata must be numbers, got {state.get(key)!r}") from error
        table = table[None] if table.ndim == 1 else table
        if table.shape != (1 + len(series), len(names)) or not table.isfinite().all():
            raise ValueError(
                f"{key} of the scaler in its metadata must be {1 + len(series)} x {len(names)} finite numbers, got "
                f"{list(table.shape)}"
            )
        values[key] = table[:, columns]
    if not (values["scale"] > 0).all():
        raise ValueError("scale of the scaler in its metadata must be above 0")
    scaler = StandardScaler()
    scaler.load_state_dict({"names": order, "series": list(series), **values})
    return scaler


def refuse_other_formats(metadata: Mapping[str, str]) -> None:
    found = metadata.get("format"), metadata.get("format_version")
    if found[0] != FORMAT:
        raise ValueError(
            f"its metadata have format={found[0]!r}, not {FORMAT!r}: scaler and data of the model are unknown; give those of a "
            "run of the same data with --run RUN"
        )
    if found[1] != FORMAT_VERSION:
        raise ValueError(f"its metadata have format_version={found[1]!r}; this release ({__version__}) reads {FORMAT_VERSION}")


def read_json(metadata: Mapping[str, str], key: str) -> dict[str, Any]:
    text = metadata.get(key)
    if text is None:
        raise ValueError(f"its metadata have no {key!r}; they have {', '.join(metadata)}")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{key!r} in its metadata is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{key!r} in its metadata must be a JSON object, got {type(value).__name__}")
    return value
