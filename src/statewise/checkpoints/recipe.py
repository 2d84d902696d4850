"""What must be known beside the weights to predict with a model: the configuration, the scaler and the form of its data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from statewise.checkpoints.composed import data_entry, known_targets
from statewise.checkpoints.entry import ENTRY
from statewise.checkpoints.file import checkpoint_of, read_checkpoint
from statewise.checkpoints.schema import with_todays_names
from statewise.data.form import Form
from statewise.data.preparation.scaling import StandardScaler
from statewise.runs import CHECKPOINTS, CONFIG, Run, load_run


class Opened(NamedTuple):
    """A checkpoint of ours, the run around it (for a file by itself: of this file), and the configuration that holds for it."""

    run: Run
    path: Path
    checkpoint: dict[str, Any]
    config: DictConfig


class Recipe(NamedTuple):
    """All but the weights."""

    config: DictConfig
    overrides: list[str]
    scaler: StandardScaler
    form: Form


def opened(place: Path | str) -> Opened:
    """The best checkpoint of a run folder, else its last one; or a checkpoint file, which brings its own configuration.

    Raises:
        FileNotFoundError: there is neither, or the run has no checkpoint.
        ValueError: the checkpoint cannot be read; or it is a file whose configuration names constructors that are not ours:
            a run folder is trusted to choose what is called, a file alone is not.
    """
    path = Path(place).expanduser().absolute()
    if not path.is_file():
        run = load_run(path)
        path = checkpoint_of(run)
        return Opened(run, path, read_checkpoint(path), OmegaConf.create(with_todays_names(run.config)))
    checkpoint = read_checkpoint(path)
    config = checkpoint[ENTRY]["config"]
    try:
        known_targets(config)
    except ValueError as error:
        raise ValueError(f"{path}: {error} from a file alone; give the run folder") from error
    folder = path.parent.parent
    in_run = path.parent.name == CHECKPOINTS and (folder / CONFIG).is_file()
    return Opened(Run(folder if in_run else path), path, checkpoint, OmegaConf.create(config))


def scaler_in(checkpoint: Mapping[str, Any], config: DictConfig) -> StandardScaler:
    """The scaler of a checkpoint's data module.

    Raises:
        ValueError: it has none.
    """
    state = checkpoint.get(data_entry(config), {})
    if "scaler" not in state:
        raise ValueError(f"the checkpoint has no scaler under '{data_entry(config)}': it was written with other data")
    scaler = StandardScaler()
    scaler.load_state_dict(state["scaler"])
    return scaler


def form_in(checkpoint: Mapping[str, Any], config: DictConfig) -> Form:
    """The form of a checkpoint's data; those of the first version do not hold it: their data are read once more."""
    state = checkpoint.get(data_entry(config), {})
    if "form" in state:
        return Form.from_state(state["form"])
    from statewise.assembly import build_data  # Lightning takes seconds to import

    return build_data(config).form


def recipe_of(place: Path | str) -> Recipe:
    """That of a run, or of a checkpoint file; a run without a readable checkpoint is asked for its data.

    Raises:
        FileNotFoundError, ValueError: as `opened`, or the data are gone.
    """
    try:
        found = opened(place)
    except (FileNotFoundError, ValueError):
        if not Path(place).is_dir():
            raise
        run = load_run(place)
        return recipe_from_data(OmegaConf.create(with_todays_names(run.config)), run.overrides)
    overrides = [str(override) for override in found.checkpoint[ENTRY]["overrides"]]
    scaler, form = scaler_in(found.checkpoint, found.config), form_in(found.checkpoint, found.config)
    return Recipe(found.config, overrides, scaler, form)


def recipe_from_data(config: DictConfig, overrides: list[str]) -> Recipe:
    """That of a run which would begin now: the data are read, and the scaler learns from their training part.

    Raises:
        FileNotFoundError, ValueError: the data cannot be used.
    """
    from statewise.assembly import build_data

    data = build_data(config)
    return Recipe(config, overrides, data.scaler, data.form)
