"""Why a checkpoint does not fit: what the differences in names and shapes say of how it was written."""

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

SHOWN = 2
# A parameter that only one side has, and the option of the model that makes it.
OPTION_OF = {
    r"glu_\d+\.": "model.glu",
    r"skip_proj\.": "model.linear_skip",
    r"norm_\d+\.": "model.norm",
    r"ssm_\d+\.D$": "model.skip",
}


def likely_causes(saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """Sentences, the most telling first, `SHOWN` at most; none where the difference does not tell.

    Args:
        saved: the tensors of the checkpoint, under the model's names where they have a partner.
        wanted: the tensors of the model.
    """
    found = dict.fromkeys(
        [
            *_of_another_model(saved, wanted),
            *_of_plain_tensors(saved, wanted),
            *_of_the_layers(saved, wanted),
            *_of_narrow_matrices(saved, wanted),
            *_of_options(saved, wanted),
            *_of_sizes(saved, wanted),
        ]
    )
    return list(found)[:SHOWN]


def _of_another_model(saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterable[str]:
    if not any(name in wanted for name in saved):
        yield "it is of another model, no name is the same"


def _of_plain_tensors(saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterable[str]:
    """What was no registered parameter was in no file, and in no optimiser either."""
    layers = {name.rpartition(".")[0] for name in wanted if name.endswith(".delta")}
    lost = [[part for part in "ABC" if f"{layer}.{part}" not in saved] for layer in layers]
    if layers and all(parts == ["A", "B", "C"] for parts in lost) and any(name in wanted for name in saved):
        yield "written when A, B, C and delta were no registered parameters, so that they neither trained nor were saved"
    elif any(f"{layer}.delta" not in saved and f"{layer}.A" in saved for layer in layers):
        yield (
            "written before delta was a registered parameter, so that it neither trained nor was saved; "
            "no value is made up for it"
        )


def _of_the_layers(saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterable[str]:
    before, now = _layers(saved), _layers(wanted)
    if before and now and before != now:
        yield f"model.n_layers is {before} in the checkpoint and {now} in the model"


def _of_narrow_matrices(saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterable[str]:
    """B and C as wide as the model, where they belong as wide as the layer."""
    for name, tensor in _other_shapes(saved, wanted):
        layer, _, part = name.rpartition(".")
        delta = wanted.get(f"{layer}.delta")
        if part not in "BC" or delta is None:
            continue
        d_state, d_model = tensor.shape[0 if part == "B" else 1], len(delta)
        narrow = [d_state, d_model] if part == "B" else [d_model, d_state]
        symbols = "[d_state, d_model]" if part == "B" else "[d_model, d_state]"
        if list(saved[name].shape) == narrow:
            yield f"{part} is {narrow} = {symbols}: written before {part} was made d_inner = expand * d_model wide"


def _of_options(saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterable[str]:
    for one, other, where in ((saved, wanted, "the checkpoint"), (wanted, saved, "the model")):
        for pattern, option in OPTION_OF.items():
            only = [name for name in one if name not in other and re.search(rf"(^|\.){pattern}", name)]
            # A layer that is missing as a whole says nothing of its parts.
            if only and not any(re.search(rf"(^|\.){pattern}", name) for name in other):
                yield f"{option} is on in {where} only"


def _of_sizes(saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterable[str]:
    for name, tensor in _other_shapes(saved, wanted):
        before, now = list(saved[name].shape), list(tensor.shape)
        last = name.rpartition("model.")[2]
        if last == "input_proj.weight" and before[1:] != now[1:]:
            yield f"it was trained on {before[1]} features and the data have {now[1]}"
        elif last in {"output_proj.weight", "output_proj.bias"} and before[0] != now[0]:
            yield f"it predicts {before[0]} values (data.horizon * targets) and the data ask for {now[0]}"
        elif re.fullmatch(r"ssm_\d+\.A", last) and len(before) == len(now) == 2 and before[0] == before[1]:
            yield f"model.d_state is {before[0]} in the checkpoint and {now[0]} in the model"
        elif re.fullmatch(r"ssm_\d+\.delta", last):
            yield f"model.d_model is {before[0]} in the checkpoint and {now[0]} in the model"
        elif len(before) == 2 and before == now[::-1]:
            yield f"{last} was written transposed"


def _other_shapes(saved: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [(name, tensor) for name, tensor in wanted.items() if name in saved and saved[name].shape != tensor.shape]


def _layers(names: Iterable[str]) -> int:
    return len({found.group(1) for name in names if (found := re.search(r"(?:^|\.)ssm_(\d+)\.", name))})
