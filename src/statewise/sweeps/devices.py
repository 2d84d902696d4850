"""Which GPUs a job may see: those of its place among the jobs that run at once."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_devices(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The names of the CUDA devices that this process may hand out, as CUDA_VISIBLE_DEVICES writes them.

    Asks nvidia-smi where the environment says nothing: importing PyTorch for the answer would cost seconds.
    """
    if VISIBLE in environment:
        return [name.strip() for name in environment[VISIBLE].split(",") if name.strip()]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(number) for number, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))]


def pinned(slot: int, at_once: int, asked: Any, visible: Sequence[str]) -> dict[str, str]:
    """The environment of a job that computes on GPUs.

    Args:
        slot: its place among the jobs that run at once, from 0.
        at_once: how many run at once.
        asked: `hardware.devices`: a number, or "auto" or -1 for a fair share.
        visible: of `visible_devices`; without any, nothing is set.

    Where there are more jobs than GPUs, they share them in turn.
    """
    if not visible:
        return {}
    fair = max(1, len(visible) // at_once)
    count = int(asked) if str(asked).isdecimal() and int(asked) > 0 else fair
    first = slot * count
    chosen = [visible[(first + offset) % len(visible)] for offset in range(min(count, len(visible)))]
    return {VISIBLE: ",".join(chosen)}
