"""Older versions become today's one step after another; later ones are refused."""

import pytest
from hydra.utils import get_method

from statewise.checkpoints import ENTRY, describe, schema
from statewise.checkpoints.schema import MOVED, upgraded, with_todays_names


def two_versions_later(monkeypatch):
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    return {
        1: lambda checkpoint: {**checkpoint, "second": checkpoint["first"]},
        2: lambda checkpoint: {**checkpoint, "third": checkpoint["second"] + 1},
    }


def test_every_step_is_made_in_its_order(monkeypatch):
    migrations = two_versions_later(monkeypatch)
    before = {ENTRY: describe({}, ["seed=1"]), "first": 1}
    after = upgraded(before, "a.ckpt", migrations)
    assert (after["second"], after["third"], after[ENTRY]["schema_version"]) == (1, 2, 3)
    assert after[ENTRY]["overrides"] == ["seed=1"]
    assert before[ENTRY]["schema_version"] == 1  # what was read is not changed


def test_there_is_a_step_from_every_version_to_the_next():
    assert set(schema.MIGRATIONS) == set(range(1, schema.SCHEMA_VERSION))


@pytest.mark.parametrize("version", [None, 0, "1", -1])
def test_a_version_that_was_never_written_is_refused(version):
    with pytest.raises(ValueError, match="without a schema version: it was changed after it was written"):
        upgraded({ENTRY: {"schema_version": version}}, "a.ckpt")


def test_a_later_version_is_refused_with_a_reason():
    with pytest.raises(ValueError, match=r"reads version 1; use the release that wrote it \(unknown\) or a later one: what"):
        upgraded({ENTRY: {"schema_version": 2}}, "a.ckpt")


def test_configurations_of_earlier_releases_name_todays_constructors():
    old = {
        "scheduler": {"_target_": "statewise.optim.warmup_cosine", "n": 1},
        "list": [{"_target_": "statewise.optim.constant"}],
    }
    new = {
        "scheduler": {"_target_": "statewise.schedules.warmup_cosine", "n": 1},
        "list": [{"_target_": "statewise.schedules.constant"}],
    }
    assert with_todays_names(old) == new == with_todays_names(new)
    assert upgraded({ENTRY: describe(old, [])}, "a.ckpt")[ENTRY]["config"] == new


def test_what_has_moved_is_where_it_is_said_to_be():
    for place in MOVED.values():
        assert callable(get_method(place))
