"""Where several processes train, the first one projects and the others take over what it made of the parameters, bit for bit.

Eigenvalues, means and logarithms may differ in their last digit from one machine to the next, and with them the transition
matrices of one model. So nothing is computed twice: the first process tells a few float64 numbers at every step at which a
layer is due, and after them the parameters that it has changed, where it has.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from statewise.callbacks.numerics_guard import Diverged
from statewise.callbacks.projected_layer import ProjectedLayer
from statewise.parallel.ranks import gathered, rank, together, told_by_the_first
from statewise.parallel.shards import whole_parameters


@torch.no_grad()
def by_the_first(layers: Sequence[ProjectedLayer], act: Callable[[], None], step: int) -> None:
    """Do `act`, which looks at the layers and may change their parameters, once for all processes; all must call it together.

    Sharded parameters are whole meanwhile. In one process with whole parameters it is `act` and nothing else.

    Raises:
        Exception: what `act` raises, in the first process; elsewhere a Diverged or RuntimeError that says the same.
    """
    cut = any(layer.sharded for layer in layers)
    with whole_parameters(*(layer.module for layer in layers)) if cut else nullcontext():
        if together():
            _act_and_tell(layers, act, step)
        else:
            act()


def _act_and_tell(layers: Sequence[ProjectedLayer], act: Callable[[], None], step: int) -> None:
    parameters = [list(layer.module.parameters()) for layer in layers]
    failure: Exception | None = None
    changed = [[0.0] * len(held) for held in parameters]
    if rank() == 0:
        versions = [[p._version for p in held] for held in parameters]
        try:
            act()
        except Exception as error:
            failure = error
        for layer, held, old, flags in zip(layers, parameters, versions, changed, strict=True):
            flags[:] = [float(p._version != version) for p, version in zip(held, old, strict=True)]
            # Written past autograd, as `.data` does: the layer does not say where.
            if layer.factor != 1.0 and not any(flags):
                flags[:] = [1.0] * len(flags)
    states = [float(0 if layer.A_bar is None else layer.A_bar.shape[-1]) for layer in layers]
    numbers = [float(failure is not None), *(layer.factor for layer in layers), *states]
    flat = [flag for flags in changed for flag in flags]
    told = told_by_the_first(torch.tensor([*numbers, *flat], dtype=torch.float64)).tolist()
    if told[0]:
        raise _the_same(failure)
    if rank():
        for layer, factor, n in zip(layers, told[1:], told[1 + len(layers) :], strict=False):
            layer.was_told(int(n), factor, step)
    everything = [p for held in parameters for p in held]
    _take_over([p for p, flag in zip(everything, told[len(numbers) :], strict=True) if flag])


def _the_same(failure: Exception | None) -> Exception:
    """The first process's error; its message, as the error of another one."""
    mine = None if failure is None else (str(failure), isinstance(failure, Diverged), vars(failure).get("tensor"))
    message, diverged, tensor = gathered(mine)[0]
    if failure is not None:
        return failure
    return Diverged(message, tensor=tensor) if diverged else RuntimeError(message)


def _take_over(parameters: Sequence[Tensor]) -> None:
    """The first process's values of some parameters. In float64, which holds all narrower ones as they are."""
    if not parameters:
        return
    values = torch.cat([p.detach().reshape(-1).to("cpu", torch.float64) for p in parameters])
    told = torch.split(told_by_the_first(values), [p.numel() for p in parameters])
    if rank():
        for parameter, new in zip(parameters, told, strict=True):
            parameter.copy_(new.view(parameter.shape))
