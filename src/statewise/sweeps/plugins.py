"""Makes our launchers and sweepers known to Hydra, and hands them the sweep of the command that runs."""

import sys
from types import ModuleType

from hydra.core.plugins import Plugins

from statewise.schemas import PLUGIN_MODULE
from statewise.sweeps.grid import GridSweeper
from statewise.sweeps.launchers import QueueLauncher, SubprocessLauncher
from statewise.sweeps.search import OptunaSearch
from statewise.sweeps.sweeping import Sweeping

PLUGINS = (SubprocessLauncher, QueueLauncher, GridSweeper, OptunaSearch)


def register(sweeping: Sweeping) -> None:
    """Make the plugins known, for this command; those of an earlier command in the same process are replaced.

    Hydra finds a plugin by the name that the configuration holds, and takes none whose name does not begin with hydra_plugins.
    """
    try:
        import hydra_plugins  # noqa: F401
    except ImportError:  # there is none where no plugin is installed
        package = sys.modules["hydra_plugins"] = ModuleType("hydra_plugins")
        package.__path__ = []  # Hydra looks for plugins in it
    module = sys.modules[PLUGIN_MODULE] = ModuleType(PLUGIN_MODULE, __doc__)
    for plugin in PLUGINS:
        named = type(plugin.__name__, (plugin,), {"__module__": PLUGIN_MODULE, "sweeping": sweeping})
        setattr(module, plugin.__name__, named)
        Plugins.instance().register(named)
