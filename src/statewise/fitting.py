"""What every process of a run does alike: put the parts together, train, and test the best checkpoint.

Rank 0 does more around it (train.py): it has the folder, the baselines, the words. The others come in by `take_part`.
"""

import logging
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from statewise import assembly
from statewise.callbacks.checkpoints import BestAndLast
from statewise.callbacks.epoch_lines import EpochLines
from statewise.callbacks.exact_order import ExactOrder
from statewise.callbacks.numerics_guard import NumericsGuard
from statewise.callbacks.stopping import StoppedEarly, Stopping
from statewise.checkpoints import describe, read_checkpoint
from statewise.interrupts import Interrupted, ask_before_stopping, only_ours
from statewise.lightning_log import quieten_lightning
from statewise.parallel.followers import Call, ended_with_the_run
from statewise.parallel.ranks import environment_rank, gathered
from statewise.resume import begin_where_it_was, refuse_resume

log = logging.getLogger(__name__)


class Fitting:
    """The parts of a run that trains, and the two things that are done with them.

    Args:
        config: the resolved configuration.
        folder: the run folder.
        parts: what is trained.
        overrides: those behind the configuration; kept in checkpoints.

    Raises:
        ValueError, OSError: something cannot be built or read, or the checkpoint that is resumed does not fit.
    """

    def __init__(self, config: DictConfig, folder: Path, parts: assembly.Parts, overrides: Sequence[str] = ()) -> None:
        self.config, self.folder = config, folder
        self.stopped: str | None = None  # where, if before the planned end
        self.datamodule, self.task = parts.datamodule, parts.task
        plain: Mapping[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        self.checkpoints = BestAndLast(
            folder / "checkpoints",
            describe(plain, overrides),
            monitor=config.objective if config.objective.startswith("val/") else "val/mse",
            every_n_steps=config.trainer.checkpoint_every_n_steps,
        )
        self.stopping = Stopping(
            self.checkpoints, after_steps=config.trainer.stop_after_steps, after_epochs=config.trainer.stop_after_epochs
        )
        own = [NumericsGuard(), ExactOrder(config.seed), EpochLines(), self.checkpoints, self.stopping]
        follow = Call("statewise.fitting:take_part", {"folder": str(folder)})
        callbacks = [*parts.callbacks.values(), *own]
        self.trainer = assembly.build_trainer(config, folder, callbacks, self.datamodule, follow)
        only_ours(self.trainer)
        if config.resume:
            parent = Path(config.resume)
            checkpoint = read_checkpoint(parent)
            if environment_rank() == 0:  # what it has to say is said once
                refuse_resume(config, checkpoint, self.task, self.datamodule)
            begin_where_it_was(parent, checkpoint, self.checkpoints)

    def request_stop(self, name: signal.Signals) -> bool:
        """Ask the fit to end at a place from which it can go on; False where there is no fit."""
        if not self.stopping.fitting:
            return False
        log.info("%s: stopping after this batch; once more to stop at once", name.name)
        self.stopping.request(name)
        return True

    def fit(self) -> None:
        """Train to the planned end, or to where it is asked to stop.

        Raises:
            Interrupted: a signal asked for it; ``last.ckpt`` is written.
        """
        go_on = f"continue with: python train.py resume={self.folder}"
        try:
            self.trainer.fit(self.task, datamodule=self.datamodule, ckpt_path=self.config.resume, weights_only=True)
        except StoppedEarly as stop:
            if asked := self.stopping.requested:
                raise Interrupted(asked, f"{stop} after step {self.trainer.global_step}; {go_on}") from None
            self.stopped = str(stop)
            log.info("stopped %s of the planned %s epochs; %s", stop, self.config.trainer.max_epochs, go_on)
        # A signal may have come to one process after the last batch, where they agreed for the last time.
        if number := max(gathered(int(self.stopping.requested or 0))):
            raise Interrupted(number, f"interrupted by {signal.Signals(number).name} before the test; {go_on}")

    def test(self) -> None:
        """Test the best checkpoint, or the last where there is no best one."""
        best = self.checkpoints.best if self.checkpoints.best.is_file() else self.checkpoints.last
        path = self.trainer.strategy.broadcast(str(best))  # file systems of several nodes may disagree for a moment
        self.trainer.test(self.task, datamodule=self.datamodule, ckpt_path=path, weights_only=True, verbose=False)


def take_part(folder: str) -> None:
    """A further process of the run in `folder`, whose configuration rank 0 has written there; nothing is said or written."""
    quieten_lightning()
    config = OmegaConf.load(Path(folder) / ".hydra" / "config.yaml")
    assert isinstance(config, DictConfig)
    fitting: Fitting | None = None
    with ask_before_stopping(lambda name: fitting is not None and fitting.request_stop(name)), ended_with_the_run():
        fitting = Fitting(config, Path(folder), assembly.assemble(config))
        fitting.fit()
        fitting.test()
