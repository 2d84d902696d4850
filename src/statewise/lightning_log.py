"""What Lightning says, and warns of, in a run of ours."""

import logging
import warnings


def quieten_lightning() -> None:
    """Lightning's log lines come through its own handlers and Hydra's: keep one, and only what matters."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning", "lightning_fabric", "pytorch_lightning"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.WARNING)
    # Lightning's own calls, in every fit; and a worker would be slower than the gather it would do.
    warnings.filterwarnings("ignore", message=r".*LeafSpec.*is deprecated")
    warnings.filterwarnings("ignore", message=r".*does not have many workers")
    # What is logged is that of all processes already.
    warnings.filterwarnings("ignore", message=r"It is recommended to use `self\.log")
