"""Which of Lightning's engines trains a run, from the hardware that its configuration asks for."""

import os
from datetime import timedelta
from typing import Any

from lightning.pytorch.strategies import DDPStrategy, Strategy

from statewise.choices import at_least, one_of
from statewise.parallel.company import several as several
from statewise.parallel.followers import FOLDER, Call, Followers
from statewise.parallel.sharding import ShardedStrategy

STRATEGIES = ("auto", "ddp", "fsdp")


class StartsFollowers:
    """For a strategy: its further processes are started by our launcher, with the call that each of them has to do."""

    follow: Call | None = None

    def _configure_launcher(self: Any) -> None:
        super()._configure_launcher()  # type: ignore[misc]  # of the strategy that this is mixed into
        if self.follow is not None or FOLDER in os.environ:
            place = self.cluster_environment, self.num_processes, self.num_nodes
            setattr(self, "_launcher", Followers(*place, self.follow))  # noqa: B010  mypy: declared in the other base


class DataParallel(StartsFollowers, DDPStrategy):
    """The whole model in every process, gradients averaged during the backward pass (Lightning's DDP)."""


class Sharded(StartsFollowers, ShardedStrategy):
    """A part of every parameter in every process (torch's fully_shard, through Lightning's ModelParallelStrategy)."""


def strategy_of(hardware: Any, follow: Call | None = None) -> str | Strategy:
    """Lightning's strategy for the node `hardware` of a configuration; `auto` is one process with one device.

    Args:
        follow: what the further processes are to do, where this process starts them; None leaves that to Lightning.

    Raises:
        ValueError: there is no such strategy, or a number is out of range.
    """
    name = one_of("hardware.strategy", hardware.strategy, STRATEGIES)
    at_least(1, hardware__num_nodes=hardware.num_nodes, hardware__timeout=hardware.timeout)
    if not several(hardware):
        return "auto"
    timeout = timedelta(seconds=hardware.timeout)
    backend = "gloo" if hardware.accelerator == "cpu" else None
    strategy: DataParallel | Sharded
    if name == "fsdp":
        strategy = Sharded(timeout=timeout, backend=backend)
    else:
        strategy = DataParallel(timeout=timeout, process_group_backend=backend)
    strategy.follow = follow
    return strategy


def refuse_processes(trainer: Any, batch_size: int, streams: int | None) -> None:
    """Whether the processes of a Lightning trainer are those that the hardware asks for, and each has something to do.

    Args:
        batch_size: that of all processes together.
        streams: how many there are to share, with data.sampling=contiguous.

    Raises:
        ValueError: they are not, in one line.
    """
    strategy = trainer.strategy
    asked = strategy.num_processes * strategy.num_nodes
    if strategy.num_nodes > 1 and not strategy.cluster_environment.creates_processes_externally:
        raise ValueError(
            f"hardware.num_nodes={strategy.num_nodes}: start the same command on every node, once for each device, with srun "
            "or torchrun; by itself it starts the processes of one node only"
        )
    if trainer.world_size != asked:
        raise ValueError(
            f"hardware asks for {asked} processes and {trainer.world_size} were started: let srun or torchrun start one for "
            "each of hardware.devices on each of hardware.num_nodes, or start the command without them"
        )
    if batch_size < asked:
        raise ValueError(
            f"data.batch_size={batch_size} is that of all processes together, and there are {asked}: it must be at least that"
        )
    if streams is not None and streams < asked:
        raise ValueError(
            f"data.sampling=contiguous has {streams} streams here and hardware asks for {asked} processes: each needs one; "
            "choose a smaller data.window or fewer hardware.devices"
        )
