"""What two processes cost and gain on this machine, P1 and P2.

    python benchmarks/two_processes.py [--quick] [--json FILE]

Two processes with one thread each and a gloo group, as hardware=ddp_cpu has them, and one process, take turns: the step
(forward, backward, fused Adam, no Lightning) of the whole batch in one process while the other waits, then of half of it in
each, with DDP between them. P2 is how many times as fast two are; P1 is what the exchange of as many bytes as there are
gradients takes by itself, in per cent of the step in one process. Wall-clock time, because waiting is what is asked about; the
least of all rounds, and worth nothing on a machine that does anything else. Information, no bar: two cores share a memory.
"""

import gc
import time
from collections.abc import Callable
from typing import Any

from measuring import DTYPES, Row, main  # before torch

# isort: split
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from statewise.models.dense_ssm import DenseSSM
from statewise.models.forecaster import Forecaster

WORLD, PORT = 2, 29_611
# d_model, expand, layers, batch: the default model, and the original's with four layers; both on the default data.
SIZES = {"default": (32, 2, 2, 128), "original": (256, 4, 4, 8)}
COLUMNS = 5
T, D_STATE = 60, 16


def model(size: str, dtype: torch.dtype) -> Forecaster:
    width, expand, layers, _ = SIZES[size]
    torch.manual_seed(0)
    blocks = [DenseSSM(d_model=width, expand=expand, d_state=D_STATE) for _ in range(layers)]
    plain = {"residual": False, "activation": "none", "glu": False} if size == "original" else {}
    return Forecaster(blocks, n_features=COLUMNS, n_outputs=COLUMNS, **plain).to(dtype)


def batch(size: str, dtype: torch.dtype, rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, T, COLUMNS, dtype=dtype), torch.randn(rows, 1, COLUMNS, dtype=dtype)


def step_of(module: nn.Module, x: Tensor, target: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        F.mse_loss(module(x, last_only=True)[0], target).backward()
        optimizer.step()

    return step


def seconds(run: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def worker(rank: int, size: str, dtype_name: str, rounds: int, repeats: int, found: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORT}", rank=rank, world_size=WORLD)
    dtype, rows = DTYPES[dtype_name], SIZES[size][3]
    alone = step_of(model(size, dtype), *batch(size, dtype, rows))
    shared = step_of(DistributedDataParallel(model(size, dtype)), *batch(size, dtype, rows // WORLD))
    gradients = torch.zeros(sum(p.numel() for p in model(size, dtype).parameters()), dtype=dtype)
    times: dict[str, list[float]] = {"one": [], "two": [], "exchange": []}
    for _ in range(rounds + 1):
        dist.barrier()
        if rank == 0:
            times["one"].append(seconds(alone, repeats))
        dist.barrier()
        times["two"].append(seconds(shared, repeats))
        dist.barrier()
        times["exchange"].append(seconds(lambda: dist.all_reduce(gradients), repeats))
    if rank == 0:
        found.put(({name: min(values[1:]) for name, values in times.items()}, gradients.numel() * gradients.element_size()))
    del alone, shared  # DDP's reducer must not outlive the group
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def rows_of(size: str, dtype: str, rounds: int, repeats: int) -> list[Row]:
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    processes = [context.Process(target=worker, args=(rank, size, dtype, rounds, repeats, queue)) for rank in range(WORLD)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a process of two_processes.py ended with {process.exitcode}")
    least, size_of_gradients = queue.get()
    what = f"{size} model, batch={SIZES[size][3]} T={T}, {size_of_gradients:,} bytes of gradients"
    print(f"{size}, {dtype}: one process {1e3 * least['one']:.2f} ms, two {1e3 * least['two']:.2f} ms a step")
    exchange = 100 * least["exchange"] / least["one"]
    with_time = f"{what}, exchange {1e3 * least['exchange']:.2f} ms"
    return [
        Row("P1", dtype, with_time, "the step in one process, %", exchange, None, "lower"),
        Row("P2", dtype, what, "one process, equal global batch", least["one"] / least["two"], None, "higher"),
    ]


def measure(quick: bool) -> list[Row]:
    """All rows; quick has one dtype and fewer rounds."""
    rounds, repeats = (4, 10) if quick else (12, 20)
    dtypes = ["float64"] if quick else list(DTYPES)
    return [row for dtype in dtypes for size in SIZES for row in rows_of(size, dtype, rounds, repeats)]


if __name__ == "__main__":
    main(__doc__, measure)
