"""What this process holds of a tensor that several processes hold together (torch's DTensor), and the whole of it.

fully_shard cuts every parameter along its first axis, one piece of equal size for each process, the last ones smaller or
empty. Everything here takes plain tensors as well: those are whole where they are. What gathers is a collective call: all
processes must make it at the same moment.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from statewise.parallel.ranks import cpu_group, together


def sharded(tensor: Any) -> bool:
    """Whether this process may hold a part of it only. By name: importing torch.distributed.tensor takes a second."""
    return type(tensor).__name__ == "DTensor"


@torch.no_grad()
def here(tensor: Any) -> Tensor:
    """The part that lies in this process, as a plain tensor on the same memory; all of a plain one."""
    part: Tensor = tensor.to_local() if sharded(tensor) else tensor
    return part


def whole(tensor: Tensor) -> Tensor:
    """All of it, as a plain tensor, on every process."""
    return gathered([tensor])[0]


def cut_along_rows(tensor: Any) -> bool:
    """Whether it is plain, or lies over one line of processes as fully_shard lays it: the only cut whose parts are known."""
    return not sharded(tensor) or bool(tensor.device_mesh.ndim == 1 and tensor.placements[0].is_shard(0))


def over_all(tensor: Any) -> bool:
    """Whether it is plain, or cut along its rows over all processes of the run, by rank."""
    return not sharded(tensor) or (cut_along_rows(tensor) and tensor.device_mesh.size() == dist.get_world_size())


def elements(tensor: Any) -> list[tuple[int, int]]:
    """From where to where each process holds the flattened tensor; of a plain one the first process speaks for all."""
    if not sharded(tensor):
        return [(0, tensor.numel())] + [(0, 0)] * (dist.get_world_size() - 1 if together() else 0)
    processes, rows = tensor.device_mesh.size(), tensor.shape[0]
    row, most = tensor.numel() // max(rows, 1), -(-rows // processes)
    return [(min(i * most, rows) * row, min((i + 1) * most, rows) * row) for i in range(processes)]


@torch.no_grad()
def gathered(tensors: Sequence[Any]) -> list[Tensor]:
    """All of several tensors by one exchange for each mesh and dtype; plain ones are returned as they are."""
    found: dict[int, Tensor] = {}
    alike: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if not sharded(tensor):
            found[index] = tensor
        elif cut_along_rows(tensor):
            alike.setdefault((tensor.device_mesh, tensor.dtype), []).append(index)
        else:
            found[index] = tensor.full_tensor()
    for (mesh, _), indices in alike.items():
        found |= zip(indices, _gather([tensors[index] for index in indices], mesh), strict=True)
    return [found[index] for index in range(len(tensors))]


def _gather(tensors: Sequence[Tensor], mesh: Any) -> list[Tensor]:
    lengths = [[end - start for start, end in elements(tensor)] for tensor in tensors]
    sizes = [sum(length[i] for length in lengths) for i in range(mesh.size())]
    mine = torch.cat([here(tensor).reshape(-1) for tensor in tensors])
    sent = mine.new_zeros(max(sizes))
    sent[: len(mine)] = mine
    everyone = _rows_of_all(sent, mesh.size(), mesh.get_group())
    parts = [row[: sizes[i]].split([length[i] for length in lengths]) for i, row in enumerate(everyone)]
    return [torch.cat([part[k] for part in parts]).view(tensor.shape) for k, tensor in enumerate(tensors)]


def _rows_of_all(mine: Tensor, processes: int, group: Any) -> Tensor:
    """Vectors of one length from all processes, [processes, length]. gloo takes a flat result only."""
    everyone = mine.new_empty(processes * len(mine))
    gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the older name is going
    gather(everyone, mine.contiguous(), group=group)
    return everyone.view(processes, len(mine))


@torch.no_grad()
def part_like(tensor: Any, values: Tensor) -> Tensor:
    """A whole tensor cut as another one of its shape is: this process's part of it, with the layout; without an exchange.

    Raises:
        ValueError: the shapes differ, or the other tensor is cut in another way than along its first axis.
    """
    if not sharded(tensor):
        return values
    if values.shape != tensor.shape:
        raise ValueError(f"a tensor of shape {list(values.shape)} cannot be cut like one of shape {list(tensor.shape)}")
    if not cut_along_rows(tensor):
        raise ValueError(f"a tensor that lies over processes as {tensor.placements} cannot be set: only parts of rows can")
    from torch.distributed.tensor import DTensor

    mesh = tensor.device_mesh
    start, end = elements(tensor)[mesh.get_local_rank()]
    part = values.detach().reshape(-1)[start:end].view(here(tensor).shape).to(mesh.device_type)
    layout = {"shape": tensor.shape, "stride": tensor.stride(), "run_check": False}
    placed: Tensor = DTensor.from_local(part, mesh, tensor.placements, **layout)
    return placed


@contextmanager
def whole_parameters(*modules: nn.Module) -> Iterator[None]:
    """Within it the parameters of sharded modules are whole and plain, and may be changed in place.

    Afterwards each process keeps its own part of what they have become; after an exception they are as before. Nothing
    happens where nothing is sharded.

    Raises:
        ValueError: a parameter was changed that is cut in another way than along its first axis.
    """
    slots = [
        (part._parameters, name, parameter)
        for module in modules
        for part in module.modules()
        for name, parameter in part._parameters.items()
        if parameter is not None and sharded(parameter)
    ]
    held = list({id(parameter): parameter for _, _, parameter in slots}.values())
    if not held:
        yield
        return
    stand_ins = {id(p): nn.Parameter(v, requires_grad=False) for p, v in zip(held, gathered(held), strict=True)}
    only_read = {id(p): stand_ins[id(p)].detach().clone() for p in held if not cut_along_rows(p)}
    for table, name, parameter in slots:
        table[name] = stand_ins[id(parameter)]
    try:
        yield
    finally:
        for table, name, parameter in slots:
            table[name] = parameter
    with torch.no_grad():
        for parameter in held:
            values = stand_ins[id(parameter)]
            if id(parameter) in only_read and torch.equal(values, only_read[id(parameter)]):
                continue
            part, new = here(parameter), here(part_like(parameter, values))
            if not torch.equal(part, new):
                part.copy_(new)


@torch.no_grad()
def whole_norms(tensors: Sequence[Any], norms: Tensor) -> Tensor:
    """Euclidean norms of the whole tensors, from those [n] of the parts that lie here; by one exchange for each mesh."""
    lines: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        for dim, placement in enumerate(tensor.placements if sharded(tensor) else ()):
            if placement.is_shard():
                lines.setdefault((tensor.device_mesh, dim), []).append(index)
    norms = norms.clone()
    for (mesh, dim), indices in lines.items():
        norms[indices] = _hypotenuse(_rows_of_all(norms[indices], mesh.size(dim), mesh.get_group(dim)))
    return norms


def _hypotenuse(parts: Tensor) -> Tensor:
    """The root of the sum of squares along the first axis, whatever the size of the numbers."""
    largest = parts.amax(0)
    unit = torch.where(largest.isfinite() & (largest > 0), largest, 1.0)
    return ((parts / unit) ** 2).sum(0).sqrt() * unit


def vectors(mine: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """What every process has, by rank, of vectors in main memory whose lengths are known to all; bit for bit."""
    if not together():
        return [mine]
    sent = mine.new_zeros(max(lengths))
    sent[: len(mine)] = mine
    everyone = [torch.empty_like(sent) for _ in lengths]
    dist.all_gather(everyone, sent, group=cpu_group())
    return [part[:length] for part, length in zip(everyone, lengths, strict=True)]
