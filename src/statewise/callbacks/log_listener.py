"""Hears what a module logs, as it was given: Lightning keeps what it makes of a value."""

from collections.abc import Callable
from typing import Any

import lightning as L


class LogListener:
    """Shadows `log` on one module, from `attach` to `detach`; calls heard(name, value) first."""

    def __init__(self, heard: Callable[[str, Any], None]) -> None:
        self._heard = heard
        self._attached = False

    def attach(self, module: L.LightningModule) -> None:
        """Listen; once is enough."""
        if self._attached:
            return
        self._attached = True
        original = module.log

        def listen(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            self._heard(name, value)
            original(name, value, *args, **kwargs)

        module.log = listen  # type: ignore[method-assign]

    def detach(self, module: L.LightningModule) -> None:
        """Give the module its own `log` back."""
        if self._attached:
            vars(module).pop("log", None)
            self._attached = False
