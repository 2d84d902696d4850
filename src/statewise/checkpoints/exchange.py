"""A trained dense SSM to the Rust side and back: one safetensors file with the original's names, docs/checkpoints.md.

Beside the weights the metadata hold what a prediction needs: the scaler, the form of the data, and the configuration, each as
JSON, in which Python and Rust write a float64 so that it reads back the same to the bit.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from statewise import __version__
from statewise.checkpoints.composed import compose, data_entry, known_targets, with_values
from statewise.checkpoints.entry import ENTRY, MODEL_PREFIX, describe
from statewise.checkpoints.fit import fitted
from statewise.checkpoints.metadata import FORMAT, FORMAT_VERSION, form_of, read_json, refuse_other_formats, scaler_of
from statewise.checkpoints.origin import model_of, precision_of, refuse_other_models, refuse_other_names
from statewise.checkpoints.schema import with_todays_names
from statewise.checkpoints.weights import read_weights
from statewise.data.form import Form
from statewise.data.preparation.scaling import StandardScaler
from statewise.runs import CHECKPOINTS, CONFIG, OVERRIDES, atomic_file

ADVICE = "the shapes must be those of docs/checkpoints.md"


def export_origin(
    tensors: Mapping[str, Tensor],
    *,
    config: Mapping[str, Any],
    overrides: list[str],
    scaler: StandardScaler,
    form: Form,
    to: Path,
) -> None:
    """Write a model of ours under the original's names; types stay as they are.

    Raises:
        ValueError: the original cannot express it; the options in the way are named.
        OSError: the file cannot be written.
    """
    refuse_other_models(config["model"], form)
    refuse_other_names(tensors)
    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "statewise_version": __version__,
        "config": _json(config),
        "overrides": _json(overrides),
        "scaler": _json({**scaler.state_dict(), "mean": scaler.mean.tolist(), "scale": scaler.scale.tolist()}),
        "form": _json(form.state_dict()),
    }
    content = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)
    with atomic_file(to) as file:
        file.write(content)


def import_origin(path: Path, folder: Path, like: tuple[Mapping[str, Any], StandardScaler, Form] | None = None) -> Path:
    """Make a run folder of such a file, from which `statewise predict` works; returns its checkpoint.

    like: configuration, scaler and form of a run, instead of those in the file.

    Raises:
        ValueError: the file is not such a file, or the folder holds a run already; what is wrong is named.
        OSError: the folder cannot be written.
    """
    if (folder / CONFIG).exists() or (folder / CHECKPOINTS).exists():
        raise ValueError(f"{folder} already holds a run; choose another folder")
    weights = read_weights(path)
    if weights.kind != "safetensors":
        raise ValueError(f"{path} is a {weights.kind}, not safetensors; statewise checkpoint migrate reads those")
    try:
        checkpoint, config, overrides = _checkpoint(path, weights.tensors, dict(weights.around), like)
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith(str(path)) else f"{path}: {text}") from error
    (folder / CONFIG).parent.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, folder / CONFIG)
    OmegaConf.save(OmegaConf.create(overrides), folder / OVERRIDES)
    written = folder / CHECKPOINTS / "best.ckpt"
    with atomic_file(written) as file:
        torch.save(checkpoint, file)
    return written


def _checkpoint(
    path: Path,
    tensors: dict[str, Tensor],
    metadata: dict[str, str],
    like: tuple[Mapping[str, Any], StandardScaler, Form] | None,
) -> tuple[dict[str, Any], DictConfig, list[str]]:
    model, precision = model_of(tensors), precision_of(tensors)
    overrides: list[str] = []
    given: Mapping[str, Any]
    if like is None:
        refuse_other_formats(metadata)
        form = form_of(read_json(metadata, "form"))
        scaler = scaler_of(read_json(metadata, "scaler"), form)
        given = with_todays_names(read_json(metadata, "config"))
        if "overrides" in metadata:
            overrides = [str(override) for override in json.loads(metadata["overrides"])]
    else:
        given, scaler, form = like
    config = _config(given, model, precision, form)
    from statewise.assembly import build_model  # Lightning takes seconds to import

    wanted = build_model(config, form).state_dict()
    found = fitted(tensors, wanted, source=path, advice=ADVICE)
    entry = describe(_plain(config), overrides)
    state = {"scaler": scaler.state_dict(), "form": form.state_dict()}
    checkpoint = {
        "epoch": 0,
        "global_step": 0,
        "state_dict": {MODEL_PREFIX + name: tensor.clone() for name, tensor in found.items()},
        data_entry(config): state,
        ENTRY: entry,
    }
    return checkpoint, config, overrides


def _config(given: Mapping[str, Any], model: Mapping[str, Any], precision: str, form: Form) -> DictConfig:
    """The whole configuration: as it is given where that is whole, else the defaults with what is given."""
    own = given.get("model") or {}
    refuse_other_models(own, form)
    sizes = ("d_model", "expand", "d_state", "n_layers")
    differ = [
        f"model.{name} is {own[name]} in the configuration and {model[name]} by the shapes"
        for name in sizes
        if own.get(name, model[name]) != model[name]
    ]
    if differ:
        raise ValueError(differ[0])
    known_targets(given)
    said = (given.get("hardware") or {}).get("precision", precision)
    if (said == "64-true") != (precision == "64-true"):
        raise ValueError(f"hardware.precision is {said} in the configuration, and the parameters are of {precision}")
    if "_target_" in (given.get("data") or {}) and "_target_" in own:
        return OmegaConf.create(dict(given))
    if "window" not in (given.get("data") or {}):
        raise ValueError("the config in its metadata must say data.window, the rows before a prediction")
    # Nothing is known of the file that was trained on.
    base = compose(["experiment=origin", "data=file", "data.path=training_data_unknown.csv", f"hardware.precision={precision}"])
    base.data.features, base.data.targets, base.data.horizon = list(form.features), list(form.targets), form.horizon
    return with_values(with_values(base, {"model": {key: model[key] for key in sizes}}), given)


def _plain(config: DictConfig) -> dict[str, Any]:
    found: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    return found


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
