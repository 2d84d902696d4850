"""The dense SSM of the Rust side: its names, its sizes, and which of our models are one.

input_proj, then for every layer LayerNorm and SSM, one after the other, then output_proj; A_bar = A, B_bar = mean(delta) B.
No residual, no gate, no activation, no skip of any kind. The names are ours: no table translates between them.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from statewise.data.form import Form

MODEL = "statewise.models.dense_ssm.dense_ssm"
# The options with which our dense SSM computes what the original computes. Dropout, initialisation and recomputation change
# nothing in what a trained model predicts.
OPTIONS: Mapping[str, Any] = {
    "discretization": "direct",
    "norm": "layer",
    "residual": False,
    "skip": False,
    "activation": "none",
    "glu": False,
    "linear_skip": 0,
}
ENDS = ("input_proj.weight", "input_proj.bias", "output_proj.weight", "output_proj.bias")
# Of every layer, with the number of axes.
LAYER = {"norm_{}.weight": 1, "norm_{}.bias": 1, "ssm_{}.A": 2, "ssm_{}.B": 2, "ssm_{}.C": 2, "ssm_{}.delta": 1}
PRECISION = {torch.float64: "64-true", torch.float32: "32-true"}
SHOWN = 4


def names_of(n_layers: int) -> list[str]:
    """Every parameter of a model with so many layers."""
    return [*ENDS[:2], *(name.format(layer) for layer in range(n_layers) for name in LAYER), *ENDS[2:]]


def refuse_other_models(model: Mapping[str, Any], form: Form) -> None:
    """Whether a configuration of `model` is one that the original computes alike; `form` is that of its data.

    Raises:
        ValueError: it is not; all options in the way are named.
    """
    target = model.get("_target_", MODEL)
    if target != MODEL:
        raise ValueError(f"model={str(target).rpartition('.')[2]} has no names of the original: only model=dense_ssm has")
    wrong = [
        f"model.{name}={_text(model[name])} ({_text(value)})"
        for name, value in OPTIONS.items()
        if model.get(name, value) != value
    ]
    anchor = model.get("anchor", "none")
    if anchor == "last" or (anchor == "auto" and form.target_inputs is not None and form.targets_are_levels):
        wrong.append(f"model.anchor={anchor} (none)")
    if wrong:
        raise ValueError(
            f"the original cannot express {', '.join(wrong)}, in brackets what it has; experiment=origin trains such a model"
        )


def refuse_other_names(names: Iterable[str]) -> int:
    """Whether these are exactly the names of a model of the original; returns its layers.

    Raises:
        ValueError: some are missing or superfluous; they are named.
    """
    names = set(names)
    layers = {int(found.group(1)) for name in names if (found := re.fullmatch(r"(?:ssm|norm)_(\d+)\.\w+", name))}
    n_layers = max(layers, default=0) + 1
    wanted = names_of(n_layers)
    missing = [name for name in wanted if name not in names]
    extra = sorted(names - set(wanted))
    parts = [f"{what}: {_listed(found)}" for what, found in (("missing", missing), ("not of the original", extra)) if found]
    if parts:
        raise ValueError(f"its names are not those of a dense SSM with {n_layers} layers; {'; '.join(parts)}")
    return n_layers


def model_of(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The options of `model` that the shapes tell, and those that the original has.

    Raises:
        ValueError: names are missing or superfluous, or a shape has a wrong number of axes.
    """
    n_layers = refuse_other_names(tensors)
    axes = {"input_proj.weight": 2, "input_proj.bias": 1, "output_proj.weight": 2, "output_proj.bias": 1}
    axes |= {name.format(layer): count for layer in range(n_layers) for name, count in LAYER.items()}
    wrong = [f"{name} is {list(tensors[name].shape)}" for name, count in axes.items() if tensors[name].ndim != count]
    if wrong:
        raise ValueError(f"{wrong[0]}, but has {axes[wrong[0].split()[0]]} axes in the original")
    d_inner, d_model = len(tensors["input_proj.bias"]), len(tensors["ssm_0.delta"])
    if not d_model or d_inner % d_model:
        raise ValueError(
            f"ssm_0.delta is [{d_model}] = [d_model] and input_proj.bias [{d_inner}] = [d_inner]: d_inner must be a multiple"
        )
    sizes = {"d_model": d_model, "expand": d_inner // d_model, "d_state": len(tensors["ssm_0.A"]), "n_layers": n_layers}
    return {"_target_": MODEL, **sizes, **OPTIONS, "anchor": "none"}


def precision_of(tensors: Mapping[str, Tensor]) -> str:
    """hardware.precision of the tensors' type.

    Raises:
        ValueError: they are not all float64, or all float32.
    """
    types: dict[torch.dtype, str] = {}
    for name, tensor in tensors.items():
        types.setdefault(tensor.dtype, name)
    if len(types) > 1:
        listed = ", ".join(f"{name} is {_dtype(dtype)}" for dtype, name in types.items())
        raise ValueError(f"all parameters must have one type, but {listed}")
    dtype = next(iter(types))
    if dtype not in PRECISION:
        raise ValueError(f"the parameters are {_dtype(dtype)}; models are float64 or float32")
    return PRECISION[dtype]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
