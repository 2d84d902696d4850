"""What a checkpoint file holds, in plain values: of ours, of Lightning's, of weights alone and of safetensors."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statewise.checkpoints.entry import ENTRY
from statewise.checkpoints.weights import Weights, read_weights


def contents(path: Path) -> dict[str, Any]:
    """All that `statewise checkpoint inspect` tells; what a file does not say is None or empty.

    Raises:
        FileNotFoundError, ValueError: as `read_weights`.
    """
    weights = read_weights(path)
    around = weights.around
    lightning = "pytorch-lightning_version" in around
    return {
        "path": str(path),
        "kind": weights.kind,
        "bytes": path.stat().st_size,
        **_written_by(weights),
        "position": _position(around),
        "best": _best(around) if lightning else None,
        "optimizers": [_optimizer(state) for state in _list(around.get("optimizer_states"))],
        "schedulers": [_scheduler(state) for state in _list(around.get("lr_schedulers"))],
        "callbacks": [str(name) for name in _mapping(around.get("callbacks"))] if lightning else [],
        **_data(around),
        "metadata": dict(around) if weights.kind == "safetensors" else {},
        "entries": sorted(str(key) for key in around) if weights.kind != "safetensors" else [],
        "pickled": list(weights.names),
        "left_out": dict(weights.left_out),
        "parameters": [describe_tensor(name, tensor) for name, tensor in weights.tensors.items()],
    }


def describe_tensor(name: str, tensor: Tensor) -> dict[str, Any]:
    """Type, shape and entries; norm over the finite entries, and how many are not."""
    found: dict[str, Any] = {
        "name": name,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "entries": tensor.numel(),
        "norm": None,
        "not_finite": 0,
    }
    if tensor.is_floating_point() or tensor.is_complex():
        exact = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
        finite = torch.isfinite(exact)
        found["not_finite"] = int(finite.numel() - finite.sum())
        found["norm"] = float(torch.linalg.vector_norm(exact if finite.all() else exact[finite]))
    return found


def _written_by(weights: Weights) -> dict[str, Any]:
    around = weights.around
    entry = _mapping(around.get(ENTRY))
    config = _mapping(entry.get("config"))
    if weights.kind == "safetensors":
        config = _json(around.get("config"))
    chosen = {part: _mapping(config.get(part)).get("_target_") for part in ("model", "data")}
    return {
        "schema_version": entry.get("schema_version"),
        "statewise_version": entry.get("version") or around.get("statewise_version"),
        "lightning_version": around.get("pytorch-lightning_version"),
        "model": str(chosen["model"]).rpartition(".")[2] if chosen["model"] else None,
        "data": str(chosen["data"]).rpartition(".")[2] if chosen["data"] else None,
        "precision": _mapping(config.get("hardware")).get("precision"),
        "overrides": [str(override) for override in _list(entry.get("overrides"))],
    }


def _position(around: Mapping[Any, Any]) -> dict[str, Any]:
    """Finished epochs, optimiser steps, and batches of the epoch that is not finished."""
    ours = next((part["position"] for part in around.values() if isinstance(part, Mapping) and "position" in part), None)
    if isinstance(ours, Mapping):
        return {"epochs": ours.get("epoch"), "steps": around.get("global_step"), "batches": ours.get("batch")}
    loop = _mapping(_mapping(around.get("loops")).get("fit_loop"))
    processed = _mapping(_mapping(loop.get("epoch_progress")).get("current")).get("processed")
    batches = _mapping(_mapping(loop.get("epoch_loop.batch_progress")).get("current")).get("processed")
    epochs = processed if processed is not None else around.get("epoch")
    return {"epochs": epochs, "steps": around.get("global_step", around.get("step")), "batches": batches}


def _best(around: Mapping[Any, Any]) -> dict[str, Any] | None:
    """Of whichever callback keeps the best checkpoint: ours, or Lightning's ModelCheckpoint."""
    for state in _mapping(around.get("callbacks")).values():
        state = _mapping(state)
        if "best_value" in state:
            config = _mapping(_mapping(around.get(ENTRY)).get("config"))
            objective = str(config.get("objective", ""))
            monitor = objective if objective.startswith("val/") else "val/mse"
            return {"monitor": monitor, "value": _number(state["best_value"]), "step": state.get("best_step")}
        if "best_model_score" in state:
            return {"monitor": state.get("monitor"), "value": _number(state["best_model_score"]), "step": None}
    return None


def _optimizer(state: Any) -> dict[str, Any]:
    groups = [_mapping(group) for group in _list(_mapping(state).get("param_groups"))]
    kept = [_mapping(part) for part in _mapping(_mapping(state).get("state")).values()]
    steps = sorted({int(part["step"]) for part in kept if "step" in part})
    tensors = [value for part in kept for value in part.values() if isinstance(value, Tensor) and value.is_floating_point()]
    return {
        "groups": len(groups),
        "lr": sorted({float(group["lr"]) for group in groups if "lr" in group}),
        "weight_decay": sorted({float(group["weight_decay"]) for group in groups if "weight_decay" in group}),
        "parameters": sum(len(_list(group.get("params"))) for group in groups),
        "with_state": len(kept),
        "state": sorted({str(name) for part in kept for name in part}),
        "steps": steps,
        "not_finite": sum(int((~torch.isfinite(tensor)).sum()) for tensor in tensors),
    }


def _scheduler(state: Any) -> dict[str, Any]:
    state = _mapping(state)
    rates = _list(state.get("_last_lr"))
    return {"steps": state.get("last_epoch"), "lr": sorted({float(rate) for rate in rates})}


def _data(around: Mapping[Any, Any]) -> dict[str, Any]:
    """Scaler and form, of the data module in a checkpoint of ours, or of the metadata of a safetensors file."""
    parts = [part for part in around.values() if isinstance(part, Mapping) and "scaler" in part]
    state: Mapping[Any, Any] = parts[0] if parts else {name: _json(around.get(name)) for name in ("scaler", "form")}
    scaler, form = _mapping(state.get("scaler")), _mapping(state.get("form"))
    return {
        "scaler": {"columns": list(scaler["names"]), "series": list(scaler.get("series", ()))} if "names" in scaler else None,
        "form": _plain_form(form) if form else None,
    }


def _plain_form(form: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): list(value) if isinstance(value, tuple) else value for key, value in form.items()}


def _json(text: Any) -> Mapping[Any, Any]:
    try:
        return _mapping(json.loads(text)) if isinstance(text, str) else {}
    except ValueError:
        return {}


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _number(value: Any) -> float | None:
    """None where there is none yet: callbacks begin with infinity."""
    number = float(value) if isinstance(value, Tensor | float | int) else math.inf
    return number if math.isfinite(number) else None


def not_finite(found: Mapping[Any, Any]) -> Iterator[str]:
    """The names of what holds entries that are not finite."""
    yield from (row["name"] for row in found["parameters"] if row["not_finite"])
    yield from (f"optimizer {number}" for number, state in enumerate(found["optimizers"]) if state["not_finite"])
