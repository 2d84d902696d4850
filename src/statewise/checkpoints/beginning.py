"""The weights that a run began with, which no file keeps: drawn again from its seed."""

from pathlib import Path

import lightning as L

from statewise.assembly import build_data, build_model
from statewise.checkpoints.recipe import Opened, opened
from statewise.checkpoints.weights import Weights


def beginning_of(place: Path | str) -> Weights:
    """The first weights of the run behind a checkpoint of ours, or of the run that it was resumed from.

    The data are read again as the run has read them, because whatever draws from the same generator before the model does
    belongs to what the seed decides. On another machine the last bits may differ.

    Raises:
        FileNotFoundError, ValueError: there is no such run, or its data are gone.
    """
    found = _first_parent(opened(place))
    config = found.config
    L.seed_everything(config.seed, verbose=False)
    model = build_model(config, build_data(config))
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return Weights(found.path, f"beginning of {found.run.folder}, drawn again from seed={config.seed}", tensors)


def _first_parent(found: Opened) -> Opened:
    """Resuming keeps the seed unless it is told another; the folder of a parent may be gone."""
    while parent := found.config.get("resume"):
        try:
            found = opened(parent)
        except FileNotFoundError:
            return found
    return found
