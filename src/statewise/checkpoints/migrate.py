"""An older or foreign checkpoint as one of this release: plain values, our names, our entry. The file itself stays as it is.

Version 0 is a checkpoint without our entry: of plain Lightning, or weights alone. What it lacks comes from a run of the same
configuration, or from overrides as `python train.py` takes them, with the data that these name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from statewise.checkpoints.composed import compose, data_entry, known_targets
from statewise.checkpoints.entry import ENTRY, MODEL_PREFIX, SCHEMA_VERSION, describe
from statewise.checkpoints.fit import fitted
from statewise.checkpoints.foreign import belong_together
from statewise.checkpoints.recipe import Recipe, recipe_from_data, recipe_of
from statewise.checkpoints.schema import upgraded, with_todays_names
from statewise.checkpoints.weights import Weights, read_weights
from statewise.data.form import Form
from statewise.data.preparation.scaling import StandardScaler
from statewise.runs import atomic_file

SHOWN = 3
ADVICE = "give the configuration it was trained with: --run RUN, or overrides as for train.py"
# What a run can be continued from; without the position in its data it would be continued wrongly.
TO_CONTINUE = ("optimizer_states", "lr_schedulers", "loops", "callbacks")


@dataclass
class Migrated:
    """What was made of a file.

    Attributes:
        written: None where there was nothing to do.
        notes: what was changed, a sentence each.
    """

    source: Path
    written: Path | None
    notes: list[str] = field(default_factory=list)


def migrate(
    path: Path, out: Path | None = None, *, run: Path | None = None, overrides: Sequence[str] = (), overwrite: bool = False
) -> Migrated:
    """Write `path` as a checkpoint of this release to `out`, by default beside it as NAME-migrated.ckpt.

    Args:
        run, overrides: where the configuration of a file without our entry comes from, one of them.
        overwrite: whether `out` may exist, as it does where it is `path` itself.

    Raises:
        FileNotFoundError, ValueError: it cannot be read, is of a later version, or does not fit the configuration.
        OSError: it cannot be written; nothing is left behind.
    """
    if run is not None and overrides:
        raise ValueError("give either --run RUN or overrides: both say what the configuration is")
    out = path.with_name(f"{path.stem}-migrated.ckpt") if out is None else out
    if out.exists() and not overwrite:
        raise ValueError(f"{out} is there already; choose another --out, or allow it with --overwrite")
    weights = read_weights(path)
    result = Migrated(path, out, [*_of_pickled(weights)])
    if weights.ours:
        if run is not None or overrides:
            raise ValueError(f"{path} has its own configuration: leave out --run and overrides")
        checkpoint = _upgraded(weights, result)
    else:
        checkpoint = _with_entry(weights, run, overrides, result)
    if result.written is not None:
        with atomic_file(out) as file:
            torch.save(checkpoint, file)
    return result


def _upgraded(weights: Weights, result: Migrated) -> dict[str, Any]:
    before = weights.around[ENTRY].get("schema_version") if isinstance(weights.around[ENTRY], Mapping) else None
    checkpoint = upgraded({**weights.around, "state_dict": weights.tensors}, str(weights.path))
    if before != SCHEMA_VERSION:
        result.notes.append(f"schema version {before} became {SCHEMA_VERSION}")
    if not result.notes:
        result.written = None
        result.notes.append(f"nothing to do: schema version {SCHEMA_VERSION}, plain values only")
    return checkpoint


def _with_entry(weights: Weights, run: Path | None, overrides: Sequence[str], result: Migrated) -> dict[str, Any]:
    """From version 0 to 1."""
    recipe, whole = _recipe(weights, run, overrides, result)
    from statewise.assembly import build_model  # Lightning takes seconds to import

    wanted = build_model(recipe.config, recipe.form).state_dict()
    tensors = fitted(weights.tensors, wanted, source=weights.path, advice=ADVICE)
    partners = belong_together(weights.tensors, wanted)
    taken_off = [name for name, ours in partners.items() if name not in (ours, MODEL_PREFIX + ours)]
    if taken_off:
        result.notes.append(f"{len(taken_off)} of {len(tensors)} names had prefixes, as {taken_off[0]}")
    plain: dict[str, Any] = OmegaConf.to_container(recipe.config, resolve=True)  # type: ignore[assignment]
    checkpoint: dict[str, Any] = {"epoch": 0, "global_step": 0, **weights.around}
    if not whole and (dropped := [key for key in TO_CONTINUE if checkpoint.pop(key, None)]):
        result.notes.append(
            f"left out {', '.join(dropped)}: where in the data the run was is not known, so it can be evaluated and predict, "
            "but not be resumed"
        )
    if not whole:
        checkpoint[data_entry(recipe.config)] = {
            "scaler": recipe.scaler.state_dict(),
            "form": recipe.form.state_dict(),
        }
    checkpoint["state_dict"] = {MODEL_PREFIX + name: tensors[name] for name in wanted}
    checkpoint[ENTRY] = describe(plain, recipe.overrides)
    result.notes.append(f"schema version 0 became {SCHEMA_VERSION}")
    return checkpoint


def _recipe(weights: Weights, run: Path | None, overrides: Sequence[str], result: Migrated) -> tuple[Recipe, bool]:
    """Configuration, scaler and form of a file without our entry, and whether the file itself brought the last two."""
    if run is not None:
        config, words = None, []
        found = recipe_of(run)
        config, words, where = found.config, found.overrides, f"the run {run}"
    elif overrides:
        found, config, words, where = None, compose(overrides), list(overrides), "the overrides"
    elif (own := _configuration_in(weights)) is not None:
        found, config, words, where = None, own, [], "its own hyper_parameters"
    else:
        raise ValueError(f"{weights.path} ({weights.kind}) does not say of which configuration it is: {ADVICE}")
    result.notes.append(f"configuration of {where}")
    state = weights.around.get(data_entry(config), {})
    if isinstance(state, Mapping) and "scaler" in state and "form" in state:
        scaler = StandardScaler()
        scaler.load_state_dict(dict(state["scaler"]))
        return Recipe(config, words, scaler, Form.from_state(state["form"])), "position" in state
    if found is None:
        result.notes.append("scaler learnt anew, from the training part of the data")
        return recipe_from_data(config, words), False
    result.notes.append(f"scaler and form of the data of {where}")
    return found, False


def _configuration_in(weights: Weights) -> DictConfig | None:
    """Lightning's hyper_parameters, or one entry of them, where they are a configuration of ours."""
    given = weights.around.get("hyper_parameters")
    if not isinstance(given, Mapping):
        return None
    for candidate in (given, *given.values()):
        if isinstance(candidate, Mapping) and all(
            isinstance(candidate.get(part), Mapping) and "_target_" in candidate[part] for part in ("model", "data")
        ):
            config = with_todays_names(candidate)
            known_targets(config, "hyper_parameters")
            found: DictConfig = OmegaConf.create(config)
            return found
    return None


def _of_pickled(weights: Weights) -> list[str]:
    notes = []
    if weights.names:
        more = f" and {len(weights.names) - SHOWN} more" if len(weights.names) > SHOWN else ""
        notes.append(f"pickled objects became plain values, no code was run: {', '.join(weights.names[:SHOWN])}{more}")
    notes += [f"left out {place}: {kind} has no plain value" for place, kind in weights.left_out.items()]
    return notes
