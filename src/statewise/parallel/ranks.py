"""Which of several processes this is, and the few words they exchange beside Lightning's own.

Everything here works without a second process, too: then there is nobody to tell.
"""

import functools
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

RANK = "STATEWISE_RANK"  # not torchrun's or SLURM's: what these start need not be processes of one run


def environment_rank() -> int:
    """The rank of this process in its run, before any process group stands; 0 where it is alone."""
    return int(os.environ.get(RANK, "0"))


def together() -> bool:
    """Whether other processes take part, and a process group stands."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    return dist.get_rank() if together() else 0


def world_size() -> int:
    return dist.get_world_size() if together() else 1


@functools.lru_cache(maxsize=1)
def _on_the_cpu(world: Any) -> Any:
    """A group for small values that lie in main memory: asking a GPU for them would halt it at every step."""
    return dist.new_group(backend="gloo")


def cpu_group() -> Any:
    """The group of all processes for tensors on the CPU; all of them must ask for it at the same moment, the first time."""
    return _on_the_cpu(dist.group.WORLD)


def summed(values: Tensor) -> Tensor:
    """The sum over all processes of a small tensor on the CPU."""
    if together():
        values = values.clone()
        dist.all_reduce(values, group=cpu_group())
    return values


def told_by_the_first(values: Tensor) -> Tensor:
    """The values that rank 0 has, bit for bit, on all; small, on the CPU, of one shape and dtype everywhere."""
    if together():
        values = values.clone()
        dist.broadcast(values, src=0, group=cpu_group())
    return values


def gathered(value: Any) -> list[Any]:
    """What every process has, by rank: any value that can be pickled."""
    if not together():
        return [value]
    everyone: list[Any] = [None] * world_size()
    dist.all_gather_object(everyone, value, group=cpu_group())
    return everyone


def gathered_by_the_first(value: Any) -> list[Any]:
    """What every process has, by rank, on rank 0; nothing on the others."""
    if not together():
        return [value]
    everyone: list[Any] | None = [None] * world_size() if rank() == 0 else None
    dist.gather_object(value, everyone, group=cpu_group())
    return everyone or []


def wait() -> None:
    """Go on when all have come here."""
    if together():
        torch.distributed.barrier(group=cpu_group())


def leave() -> None:
    """Take down the process group, where one stands: the next run of this process may be alone."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    _on_the_cpu.cache_clear()
