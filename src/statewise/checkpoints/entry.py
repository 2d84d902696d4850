"""The one entry that makes a Lightning checkpoint ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from statewise import __version__

ENTRY = "statewise"
SCHEMA_VERSION = 1
MODEL_PREFIX = "model."  # the task holds the model under this name


def describe(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The entry: schema version, version of Statewise, the resolved configuration as plain values, the overrides behind it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "version": __version__,
        "config": dict(config),
        "overrides": list(overrides),
    }
