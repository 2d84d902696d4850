"""What our sweepers of Hydra have in common: the sweep of the command, and the launcher that runs its jobs."""

from typing import ClassVar

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from statewise.sweeps.sweeping import Sweeping


class CommandSweeper(Sweeper):
    """A subclass says in `sweep` which jobs there are."""

    sweeping: ClassVar[Sweeping]  # of the command, see plugins.py

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context: HydraContext = hydra_context
        self.config: DictConfig = config
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
