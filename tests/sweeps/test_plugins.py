"""Hydra finds our launchers and sweepers by their names, also where no plugin is installed."""

import sys

import pytest
from hydra.core.plugins import Plugins
from hydra.utils import get_class

from statewise.schemas import HYDRA_PLUGINS, PLUGIN_MODULE
from statewise.sweeps import plugins
from statewise.sweeps.sweeping import Sweeping

NAMES = [name for group in HYDRA_PLUGINS.values() for name in group.values()]


@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_names_plugins_that_there_are(name):
    sweeping = Sweeping(["-m"])
    plugins.register(sweeping)
    found = get_class(f"{PLUGIN_MODULE}.{name}")
    assert found.sweeping is sweeping
    assert Plugins.instance().class_name_to_class[f"{PLUGIN_MODULE}.{name}"] is found


def test_no_other_plugin_has_to_be_installed(monkeypatch):
    for module in [name for name in sys.modules if name.split(".")[0] == "hydra_plugins"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "hydra_plugins", None)  # as if there were none
    plugins.register(Sweeping([]))
    fresh = object.__new__(Plugins)
    fresh.__init__()
    assert get_class(f"{PLUGIN_MODULE}.SubprocessLauncher")
