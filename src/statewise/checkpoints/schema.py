"""The versions of the entry, and the way from each to the next.

0  no entry at all: a plain Lightning checkpoint, or weights alone; `statewise.checkpoints.migrate` asks for what is missing
1  configuration and overrides; scaler, form and position under the name of the data module
"""

from collections.abc import Callable, Mapping
from typing import Any

from statewise import __version__
from statewise.checkpoints.entry import ENTRY, SCHEMA_VERSION

Migration = Callable[[dict[str, Any]], dict[str, Any]]

# From version n to n + 1: a new checkpoint from an old one, by itself. What a reader can do without needs no new version.
MIGRATIONS: Mapping[int, Migration] = {}
# Constructors that stand in another module than where configurations of earlier releases name them.
MOVED: Mapping[str, str] = {
    "statewise.optim.constant": "statewise.schedules.constant",
    "statewise.optim.warmup_cosine": "statewise.schedules.warmup_cosine",
}


def with_todays_names(config: Any) -> Any:
    """A configuration, as plain values, with every constructor named as it is named today."""
    if isinstance(config, Mapping):
        return {
            key: MOVED.get(value, value) if key == "_target_" and isinstance(value, str) else with_todays_names(value)
            for key, value in config.items()
        }
    return [with_todays_names(value) for value in config] if isinstance(config, list) else config


def upgraded(checkpoint: Mapping[str, Any], name: str, migrations: Mapping[int, Migration] = MIGRATIONS) -> dict[str, Any]:
    """A checkpoint with an entry, in the version of this release; `name` is that of the file.

    Raises:
        ValueError: it is of a later version, or of one that was never written.
    """
    found = dict(checkpoint)
    entry = found[ENTRY]
    version = entry.get("schema_version") if isinstance(entry, Mapping) else None
    if not isinstance(version, int) or version < 1:
        raise ValueError(f"{name} has the entry '{ENTRY}' without a schema version: it was changed after it was written")
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"{name} has checkpoint schema version {version}, this release ({__version__}) reads version {SCHEMA_VERSION}; "
            f"use the release that wrote it ({entry.get('version', 'unknown')}) or a later one: what a later version means "
            "cannot be guessed"
        )
    while version < SCHEMA_VERSION:
        found = migrations[version](found)
        version += 1
        found[ENTRY] = {**found[ENTRY], "schema_version": version}
    found[ENTRY] = {**found[ENTRY], "config": with_todays_names(found[ENTRY].get("config"))}
    return found
