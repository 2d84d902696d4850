"""Processes that srun or torchrun has started all at once, of one run or of several: how those of one run find its folder.

Rank 0 goes its ordinary way, makes the run folder and checks everything. When it is ready to train it tells the others where
that is, through a key-value store of torch; when it ends before, it tells them that. Until then they wait and do nothing.
"""

import functools
import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from statewise.launch import launch
from statewise.parallel.company import of_one_run
from statewise.parallel.follow import quietly
from statewise.parallel.ranks import RANK

PORTS = 25_000, 7_000  # beside those that Lightning derives from SLURM's job ids, below those of outgoing connections
NOTHING = "exit code "  # told in place of a folder
SECONDS_TO_MEET = 600  # srun starts the processes of a large job one after another


@dataclass(frozen=True)
class Start:
    """One of several processes, and where they meet.

    Attributes:
        shared: whether whoever started them has a store for them already.
        turn: which of the runs that these processes do one after another.
    """

    rank: int
    address: str
    port: int
    shared: bool = False
    turn: int = 0

    def tell(self, folder: str) -> None:
        """Rank 0: the folder of the run, or the exit code where there will be none."""
        _store(self).set(self._key, folder)

    def told(self) -> str:
        """The others: wait for what rank 0 tells; that there is nothing where it is gone."""
        try:
            store = _store(self)
            while not store.check([self._key]):
                time.sleep(0.1)
            return str(store.get(self._key).decode())
        except dist.DistError:
            return f"{NOTHING}1"

    @property
    def _key(self) -> str:
        return f"statewise/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{self.turn}"


def started_at_once() -> Start | None:
    """Which of the processes this is that srun or torchrun has started; None where it is alone, or the first of its own."""
    if dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1:
        port = int(os.environ["MASTER_PORT"])
        shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        where = os.environ["MASTER_ADDR"], port if shared else _beside(port), shared
        return Start(int(os.environ["RANK"]), *where, turn=next(_turns))
    if int(os.environ.get("SLURM_NTASKS", "1")) > 1 and "SLURM_STEP_ID" in os.environ and SLURMEnvironment.detect():
        slurm = SLURMEnvironment()
        return Start(int(os.environ["SLURM_PROCID"]), slurm.main_address, _beside(slurm.main_port), turn=next(_turns))
    return None


def _beside(port: int) -> int:
    first, count = PORTS
    return first + port % count


def _store(start: Start) -> Any:
    return _connected(start.rank == 0 and not start.shared, start.address, start.port)


@functools.cache
def _connected(hosts: bool, address: str, port: int) -> Any:
    """One for the life of the process: a folder that was told may be asked for a moment later."""
    patience = timedelta(seconds=SECONDS_TO_MEET)
    return TCPStore(address, port, is_master=hosts, wait_for_workers=False, timeout=patience, multi_tenant=True)


_turns = itertools.count()


def in_company(run: Callable[..., float], arguments: Sequence[str]) -> int:
    """Do what a command line says where others were started with it; the exit code.

    Args:
        run: as for `launch`; it also takes `tell`, to be called with the folder when all is ready to train.
    """
    start = started_at_once() if of_one_run(_with_parents(arguments)) else None
    if start is None:
        return launch(run, arguments)
    if start.rank > 0:
        return follow_the_first(start)
    told: list[str] = []

    def tell(folder: str) -> None:
        told.append(folder)
        start.tell(folder)

    code = 1
    try:
        code = launch(functools.partial(run, tell=tell), arguments)
    finally:
        if not told:
            start.tell(f"{NOTHING}{code}")
    return code


def follow_the_first(start: Start) -> int:
    """Take part in the run of rank 0, and return the exit code; where there is no run, that of rank 0."""
    os.environ[RANK] = str(start.rank)
    told = start.told()
    if told.startswith(NOTHING):
        return int(told.removeprefix(NOTHING))
    from statewise.fitting import take_part

    return quietly(take_part, folder=told)


def _with_parents(arguments: Sequence[str]) -> list[str]:
    from statewise.resume import with_parents_overrides

    try:
        return with_parents_overrides(arguments, Path.cwd())
    except (ValueError, OSError):  # or resume=auto, which has all overrides itself
        return list(arguments)
