"""`hardware=fsdp`: every process holds a part of each parameter, of its gradient and of the optimiser's state.

torch's fully_shard does the work (Zhao et al. 2023, PyTorch FSDP, arXiv 2304.11277; Rajbhandari et al. 2020, ZeRO, stage 3),
through Lightning's ModelParallelStrategy. Each block of a model is one unit: its parameters are gathered before it runs, let
go after it has run, gathered again for its backward pass, and its gradients are summed into the parts.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from lightning.pytorch.plugins import DoublePrecision, Precision
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten, tree_unflatten

from statewise.parallel.shards import gathered, part_like, sharded

PORTION = 2**24  # elements that are gathered at a time for a checkpoint


class ShardedStrategy(ModelParallelStrategy):
    """All processes in one line, one checkpoint: an ordinary file, whole, with the names that one process gives.

    Args:
        backend: of the process group; None takes nccl on GPUs and gloo on CPUs.
        timeout: after which a process gives up waiting for the others; None is torch's default.
    """

    def __init__(self, backend: str | None = None, timeout: timedelta | None = None) -> None:
        super().__init__(save_distributed_checkpoint=False, process_group_backend=backend)
        self._timeout = timeout or self._timeout

    def setup_environment(self) -> None:
        self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
        super().setup_environment()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """What one process would save, on the first one; nothing on the others. All of them must ask."""
        assert self.lightning_module is not None
        return self._on_the_first(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Likewise. Lightning's own numbers the parameters by the model, torch by the groups: a file must mean one thing."""
        return self._on_the_first(getattr(optimizer, "optimizer", optimizer).state_dict())

    # Lightning's own restores what a checkpoint holds after the fit has begun: too late for the order of the data and for
    # callbacks. The model is cut before that, in `configure_model`, so that nothing has to wait.

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        return False

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Every process reads the file; mapped into memory, so that it holds little more than the parts it copies."""
        path = self.broadcast(checkpoint_path)
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", mmap=True, weights_only=weights_only)
        return checkpoint

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        module = self.lightning_module
        assert module is not None
        own = module.state_dict()
        saved = checkpoint["state_dict"]
        parts = {name: part_like(own[name], values) if name in own else values for name, values in saved.items()}
        module.load_state_dict(parts, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(_parts_of_state(optimizer, state))

    def _on_the_first(self, state: dict[str, Any]) -> dict[str, Any]:
        leaves, structure = tree_flatten(state)
        values: dict[int, Tensor] = {}
        for tensors in _portions([leaf for leaf in leaves if sharded(leaf)]):
            found = gathered(tensors)
            if self.is_global_zero:
                values |= {id(tensor): value.cpu() for tensor, value in zip(tensors, found, strict=True)}
        if not self.is_global_zero:
            return {}
        kept: dict[str, Any] = tree_unflatten([values.get(id(leaf), leaf) for leaf in leaves], structure)
        return kept


def _portions(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """A few tensors at a time: no device holds more of a model than its parts and one portion, or one parameter."""
    portion: list[Tensor] = []
    for tensor in tensors:
        if portion and sum(held.numel() for held in portion) + tensor.numel() > PORTION:
            yield portion
            portion = []
        portion.append(tensor)
    if portion:
        yield portion


def _parts_of_state(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """An optimiser's state as saved, with what is as large as its parameter cut as that is."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    if len(numbers) != len(parameters):
        raise ValueError(
            f"the checkpoint's optimiser holds {len(numbers)} parameters and this one {len(parameters)}: resume with the "
            "configuration that wrote it"
        )
    cut = {
        number: {
            key: part_like(parameter, value) if isinstance(value, Tensor) and value.shape == parameter.shape else value
            for key, value in state["state"].get(number, {}).items()
        }
        for number, parameter in zip(numbers, parameters, strict=True)
    }
    return state | {"state": {number: values for number, values in cut.items() if values}}


def precision_of(hardware: Any) -> tuple[str | None, list[Precision]]:
    """The Trainer's arguments `precision` and `plugins` for the node `hardware` of a configuration.

    Lightning refuses float64 by its name under this strategy, and its plugin does it all the same.

    Raises:
        ValueError: the precision is not possible with hardware.strategy=fsdp.
    """
    precision = str(hardware.precision)
    if hardware.strategy != "fsdp" or precision in {"32-true", "bf16-mixed", "bf16-true", "16-true"}:
        return precision, []
    if precision != "64-true":
        raise ValueError(
            f"hardware.precision={precision} is not possible with hardware.strategy=fsdp, where no loss is scaled: use "
            "bf16-mixed, 32-true or 64-true"
        )
    return None, [DoublePrecision()]


def shard(model: nn.Module, mesh: Any) -> None:
    """Cut the parameters of a model over the processes of a mesh, block by block; once.

    A model tells its blocks by `blocks()`, lists of modules that run one after another; one that does not is one unit.
    No unit stays whole after its forward pass, the outermost one included: what lies outside of a forward pass is always
    the part, so that whoever looks at the parameters between two steps sees the same objects.

    Raises:
        ValueError: fully_shard cannot cut one of the parameters.
    """
    from torch.distributed.fsdp import fully_shard

    # Of outputs that are views: writing into one would lose the hook behind it. Nothing of ours writes into an output.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
    if any(map(sharded, model.parameters())):
        return
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise ValueError(
                f"hardware=fsdp cuts parameters along their first axis, and {name} is a single number: make it a tensor of "
                "one element, or use hardware=ddp"
            )
    tell = getattr(model, "blocks", None)
    for block in tell() if callable(tell) else ():
        fully_shard(list(block), mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    for module in model.modules():
        _keep_name(type(module))


def _keep_name(kind: type) -> None:
    """fully_shard makes a subclass `FSDPLinear`: messages, reports and checkpoints go on calling it what it is."""
    original = next((base for base in kind.__mro__[1:] if kind.__name__ == f"FSDP{base.__name__}"), None)
    if original is not None:
        kind.__name__, kind.__qualname__, kind.__module__ = original.__name__, original.__qualname__, original.__module__
