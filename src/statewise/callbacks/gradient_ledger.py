"""The gradient norms of the step in progress, computed once for all callbacks that ask for them."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer

from statewise.parallel.shards import here, sharded, whole_norms


class GradientReading:
    """The gradients of one optimizer's parameters at one moment; read `norms` within the hook that asked for it.

    The norms are computed when they are first looked at and by one foreach call, so that a step at which nobody looks
    costs nothing and one at which two callbacks look costs one computation.
    """

    def __init__(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        self.parameters = parameters

    @cached_property
    def _with_gradient(self) -> list[tuple[str, Tensor]]:
        return [(name, parameter.grad) for name, parameter in self.parameters if parameter.grad is not None]

    @cached_property
    def names(self) -> list[str]:
        """Parameters that have a gradient, in the order of `norms`."""
        return [name for name, _ in self._with_gradient]

    @cached_property
    def none(self) -> list[str]:
        """Parameters whose gradient is None."""
        return [name for name, parameter in self.parameters if parameter.grad is None]

    @cached_property
    def norms(self) -> Tensor:
        """Euclidean norm of every gradient, float64, on the parameters' device, shape [len(names)]."""
        return tensor_norms([gradient for _, gradient in self._with_gradient])

    def gradient(self, name: str) -> Tensor:
        """The gradient itself, to look closer where its norm is odd."""
        return dict(self._with_gradient)[name]


class GradientLedger:
    """Hands the same reading to all callbacks that ask within one hook.

    A reader asks at every `on_before_optimizer_step`, also where it does not look at the numbers: a reading that the
    reader has had before belongs to an earlier step, and the next one is begun.

    Args:
        module: the module whose names the parameters bear, without the task's `model.` in front.
    """

    def __init__(self, module: L.LightningModule) -> None:
        self._module = module
        self._known: dict[int, tuple[list[int], list[tuple[str, Tensor]]]] = {}
        self._reading: GradientReading | None = None
        self._optimizer: Optimizer | None = None
        self._readers: set[int] = set()

    def read(self, reader: object, optimizer: Optimizer) -> GradientReading:
        """This step's reading of the parameters that `optimizer` is about to update."""
        optimizer = getattr(optimizer, "optimizer", optimizer)  # Lightning may hand over its wrapper
        if self._reading is None or self._optimizer is not optimizer or id(reader) in self._readers:
            self._reading = GradientReading(self._parameters(optimizer))
            self._optimizer = optimizer
            self._readers.clear()
        self._readers.add(id(reader))
        return self._reading

    def outside(self, optimizers: Iterable[Optimizer]) -> GradientReading:
        """Parameters that want a gradient and that no optimizer updates: in no total, but not to be hidden either."""
        held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
        named = zip(short_names(self._module.named_parameters()), self._module.parameters(), strict=True)
        return GradientReading([(name, p) for name, p in named if p.requires_grad and id(p) not in held])

    def _parameters(self, optimizer: Optimizer) -> list[tuple[str, Tensor]]:
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        known = self._known.get(id(optimizer))
        # Groups may grow in the course of a fit (unfreezing), they do not change behind their length.
        if known is None or known[0] != sizes:
            names = zip(self._module.parameters(), short_names(self._module.named_parameters()), strict=True)
            name_of = {id(p): name for p, name in names}
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            named = [(name_of.get(id(p), f"parameter {i}, not in the module"), p) for i, p in enumerate(parameters)]
            known = self._known[id(optimizer)] = (sizes, named)
        return known[1]


def shared_ledger(trainer: L.Trainer, module: L.LightningModule) -> GradientLedger:
    """The ledger that another callback of this trainer already opened for this module, or a new one."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        ledger = getattr(callback, "ledger", None)
        if isinstance(ledger, GradientLedger) and ledger._module is module:
            return ledger
    return GradientLedger(module)


def short_names(named: Iterable[tuple[str, object]]) -> list[str]:
    """Names without the task's `model.` in front (`ssm_0.A`), unless two of them would become the same."""
    full = [name for name, _ in named]
    short = [name.removeprefix("model.") for name in full]
    return short if len(set(short)) == len(full) else full


def tensor_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Euclidean norm of every tensor: float64, on the first one's device; half precision is summed in float32.

    Of tensors that lie in parts over several processes it is that of the whole, on all of them: a collective call.
    """
    if not tensors:
        return torch.zeros(0, dtype=torch.float64)
    if any(map(sharded, tensors)):
        return whole_norms(tensors, tensor_norms([here(t) for t in tensors]))
    dense = [t.coalesce().values() if t.is_sparse else t for t in tensors]
    kinds = {(t.device, t.dtype) for t in dense}
    if len(kinds) == 1:
        narrow = dense[0].dtype in (torch.float16, torch.bfloat16)
        norms = torch._foreach_norm(dense, 2, torch.float32 if narrow else None)
        return torch.stack(norms).to(torch.float64)
    device = dense[0].device
    wide = [torch.linalg.vector_norm(t, dtype=_wide(t)).to(device, torch.float64) for t in dense]
    return torch.stack(wide)


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def to_host(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Several vectors or scalars as lists of Python floats, by one transfer from their device."""
    if not tensors:
        return []
    flat = [t.detach().reshape(-1) for t in tensors]
    device = next((t.device for t in flat if t.numel()), flat[0].device)
    values = torch.cat([t.to(device, torch.float64) for t in flat]).tolist()
    ends = [0]
    for t in flat:
        ends.append(ends[-1] + t.numel())
    return [values[start:end] for start, end in pairwise(ends)]
