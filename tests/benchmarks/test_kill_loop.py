"""A run that is killed again and again: `python benchmarks/kill_loop.py` does it a hundred times."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

KILL_LOOP = Path(__file__).parents[2] / "benchmarks" / "kill_loop.py"


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "fork") or not hasattr(signal, "SIGKILL"), reason="needs processes that are forked and killed"
)
@pytest.mark.timeout(1200)
def test_no_kill_costs_a_checkpoint_or_changes_the_end_of_a_run():
    done = subprocess.run([sys.executable, KILL_LOOP, "--times", "12", "--seed", "3"], capture_output=True, text=True)
    *rounds, verdict = done.stdout.strip().splitlines()
    assert re.fullmatch(r"verdict: 12 of 12 kills without a fault; \d+ runs came to their end and are equal .*", verdict), (
        done.stdout
    )
    assert sum(" killed " in line for line in rounds) == 12
    assert done.returncode == 0, done.stderr
