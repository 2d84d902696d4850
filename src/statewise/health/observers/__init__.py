"""The observers of a run, one side of it each."""

from statewise.health.observer import Observer

OBSERVERS: tuple[type[Observer], ...] = ()
