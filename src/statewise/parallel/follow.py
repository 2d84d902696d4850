"""`python -m statewise.parallel.follow`: what a further process of a run is, from its call to its exit code."""

import importlib
import json
import logging
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from statewise.interrupts import Interrupted
from statewise.parallel.followers import CALL, FOLDER, PARENT
from statewise.train import status_of


def main() -> int:
    """Do the call that rank 0 has left, and return the exit code."""
    threading.Thread(target=_end_with, args=(int(os.environ[PARENT]),), daemon=True).start()
    call = json.loads(Path(os.environ[FOLDER], CALL).read_text())
    module, _, name = call["function"].partition(":")
    return quietly(getattr(importlib.import_module(module), name), **call["arguments"])


def quietly(function: Callable[..., Any], **arguments: Any) -> int:
    """Call it with nothing said but errors, in full, on standard error; the exit code."""
    logging.basicConfig(level=logging.ERROR, format="%(message)s", stream=sys.stderr, force=True)
    warnings.simplefilter("ignore")
    try:
        function(**arguments)
    except Interrupted as interrupted:
        return interrupted.exit_code
    except Exception as error:
        # Of several that srun or torchrun has started rank 0 says what all know; a file is read where rank 0 does not.
        if FOLDER in os.environ or status_of(error) == "failed":
            traceback.print_exc()
        return 1
    return 0


def _end_with(parent: int) -> None:
    """Nobody waits for this process when rank 0 is gone, and a collective with it may never come back."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
