"""Which tensors a file of any kind holds, by name: our checkpoints, those of others, weights alone, safetensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from statewise.checkpoints.file import is_ours, pickled_in, read_plain, reason_of
from statewise.checkpoints.inert import Plain, load_inert

SAFETENSORS = ".safetensors"
# Where training programs keep the weights, in the order in which they are looked for.
ENTRIES = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params")


@dataclass
class Weights:
    """The tensors of a file, and the file around them.

    Attributes:
        kind: of the file, for people.
        around: what it holds beside them; for safetensors its metadata.
        names: the classes of pickled objects in it, which were not loaded.
        left_out: of these, what could not be made plain values: place in the file -> class.
    """

    path: Path
    kind: str
    tensors: dict[str, Tensor]
    around: Mapping[Any, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        return is_ours(self.around)


def read_weights(path: Path) -> Weights:
    """The tensors of a file, mapped where that is possible: they are read where they are used. No code of the file is run.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be read, or holds no tensors under names.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.suffix == SAFETENSORS:
        return _safetensors(path)
    content = _content(path)
    value = content.value
    if not isinstance(value, Mapping):
        raise ValueError(f"{path} holds {_a(value)}, not tensors under names")
    entry = _entry(value, path)
    tensors = _tensors(value if entry is None else value[entry])
    around = {} if entry is None else {key: part for key, part in value.items() if key != entry}
    return Weights(path, _kind(value, entry, content.names), tensors, around, content.names, content.left_out)


def _content(path: Path) -> Plain:
    try:
        return Plain(read_plain(path, in_memory=False))
    except ValueError:
        if not pickled_in(path):
            raise
    try:
        return load_inert(path, in_memory=False)
    except ValueError:
        raise
    except Exception as error:  # torch raises half a dozen types
        raise ValueError(f"{path} holds pickled objects that no stand-in can replace ({reason_of(error)})") from error


def _safetensors(path: Path) -> Weights:
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return Weights(path, "safetensors", {name: file.get_tensor(name) for name in names}, file.metadata() or {})
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read as safetensors ({error}); it is damaged or of another kind") from error


def _entry(value: Mapping[Any, Any], path: Path) -> str | None:
    """Under which key the weights are; None: they are the file."""
    known = [key for key in ENTRIES if _holds_tensors(value.get(key))]
    if known:
        return known[0]
    if _holds_tensors(value):
        return None
    others = [str(key) for key, part in value.items() if _holds_tensors(part)]
    if len(others) == 1:
        return others[0]
    if others:
        raise ValueError(f"{path} holds tensors under {', '.join(others)}: which of them are the model's cannot be told")
    raise ValueError(f"{path} holds no tensors under names; its entries are {', '.join(map(str, value)) or 'none'}")


def _holds_tensors(part: Any) -> bool:
    return isinstance(part, Mapping) and any(isinstance(tensor, Tensor) for tensor in part.values())


def _tensors(part: Mapping[Any, Any]) -> dict[str, Tensor]:
    found = {str(name): tensor.detach() for name, tensor in part.items() if isinstance(tensor, Tensor)}
    return {name: tensor if tensor.layout is torch.strided else tensor.to_dense() for name, tensor in found.items()}


def _kind(value: Mapping[Any, Any], entry: str | None, names: tuple[str, ...]) -> str:
    if is_ours(value):
        return "checkpoint of statewise"
    if "pytorch-lightning_version" in value:
        return "Lightning checkpoint"
    if entry is not None:
        return f"checkpoint with the weights under '{entry}'"
    return "pickled module" if any(name.startswith("torch.nn.modules.") for name in names) else "state_dict"


def _a(value: Any) -> str:
    return "a tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
