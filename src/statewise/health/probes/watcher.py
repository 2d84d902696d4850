"""What torch functions a step calls: where the batch meets a prediction, and what is drawn at random.

Only what is asked by name in Python is seen: draws inside a scripted module or in numpy are not.
"""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from statewise.health.graph.walk import edge
from statewise.health.probes.structure import PLAIN, tensors

# Draws that leave some values out: dropout in all its forms.
_OMITTING = frozenset(
    {
        "dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_", "native_dropout",
        "feature_alpha_dropout", "feature_alpha_dropout_", "dropout1d", "dropout2d", "dropout3d", "rrelu", "rrelu_",
    }
)  # fmt: skip
_NORMAL = frozenset({"randn", "randn_like", "normal", "normal_"})
_UNIFORM = frozenset({"rand", "rand_like", "uniform_"})
_COMPARING = frozenset({"gt", "lt", "ge", "le", "greater", "less", "greater_equal", "less_equal", "floor", "floor_"})
_OTHERS = frozenset(
    {
        "randint", "randint_like", "random_", "randperm", "multinomial", "exponential_", "gumbel_softmax", "poisson",
        "cauchy_", "geometric_", "log_normal_", "binomial", "_sample_dirichlet", "_standard_gamma",
    }
)  # fmt: skip

_DRAWING = _OMITTING | _NORMAL | _UNIFORM | _OTHERS | {"bernoulli", "bernoulli_", "scaled_dot_product_attention"}
_NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Meeting:
    """Where a prediction (it has a gradient) and something made of the batch (it has none) went into one operation."""

    prediction: Tensor
    others: tuple[Tensor, ...]
    # Numbers of the batch's leaves that the other side was made of.
    of: frozenset[int]
    result: tuple[Any, int] | None
    # How many module calls had ended before, and the recorder's clock.
    after: int
    clock: int
    # The function's name.
    by: str


class Watcher(TorchFunctionMode):
    """Follows the leaves of a batch through a step, up to where predictions meet them.

    `sampled`: there were draws, and all that were seen are sampling by the model's own will (noise that the network
    scales, noise on the data, choices), not dropout and not noise of a fixed strength.
    """

    def __init__(self, given: Iterable[Any]) -> None:
        super().__init__()
        self._given = list(given)
        self._origin: dict[int, tuple[Any, frozenset[int]]] = {}
        self._noise: dict[int, tuple[Any, str]] = {}
        # The recorder's: its clock, and how many module calls have ended.
        self.clock = self.ended = 0
        self.meetings: list[Meeting] = []
        # Leaves that went into a module, themselves or what was made of them, with no prediction beside them.
        self.entered: set[int] = set()
        self.draws: dict[str, int] = {}
        for number, tensor in enumerate(self._given):
            if not isinstance(tensor, Tensor):
                continue
            self._origin[id(tensor)] = (weakref.ref(tensor), frozenset({number}))

    def origin(self, tensor: Tensor) -> frozenset[int]:
        """The batch's leaves of which a tensor without gradient was made."""
        known = self._origin.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else _NOTHING

    def enter(self, inputs: Iterable[Tensor]) -> None:
        """A module is called; one that is given a prediction as well computes a loss."""
        tensors = list(inputs)
        of = frozenset[int]().union(*map(self.origin, tensors))
        # Asking a tensor for an attribute comes back here as a function: only where it matters.
        if of and not of <= self.entered and all(tensor.grad_fn is None for tensor in tensors):
            self.entered |= of

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in ("__get__", "size", "dim", "__set__"):
            return self._attribute(args, result)
        drawing = bool(self._noise) or name in _DRAWING
        if not drawing and not kwargs and not self._concerns(args):
            return result
        given = tensors((args, kwargs))
        made = tensors(result)
        if drawing:
            self._draw(name, args, kwargs or {}, given, made)
        if not made:
            return result
        known = [of for tensor in given if (of := self.origin(tensor))]
        if known:
            of = frozenset[int]().union(*known)
            # A parameter that is applied to the batch is no prediction.
            predictions = [tensor for tensor in given if tensor.grad_fn is not None and tensor.ndim > 0]
            if predictions and made[0].requires_grad:
                others = tuple(tensor for tensor in given if self.origin(tensor))
                self.meetings += [Meeting(p, others, of, edge(made[0]), self.ended, self.clock, name) for p in predictions]
            self._remember(made, of)
        return result

    def _concerns(self, args: Any) -> bool:
        """Whether something of the batch may be among these arguments: most functions of a step are given none."""
        for value in args:
            kind = type(value)
            if (id(value) in self._origin) if kind is Tensor or kind is nn.Parameter else kind not in PLAIN:
                return True
        return False

    def _attribute(self, args: Any, result: Any) -> Any:
        # x.data, x.T and the like are made of x.
        if isinstance(result, Tensor) and args and isinstance(args[0], Tensor):
            self._remember([result], self.origin(args[0]))
        return result

    def _remember(self, made: list[Tensor], of: frozenset[int]) -> None:
        for tensor in made:
            if of and not tensor.requires_grad:
                self._origin[id(tensor)] = (weakref.ref(tensor), of)

    def _draw(self, name: str, args: Any, kwargs: Any, given: list[Tensor], made: list[Tensor]) -> None:
        """Sort draws by what becomes of them."""
        noises = [self._noise[id(t)][1] for t in given if id(t) in self._noise and self._noise[id(t)][0]() is t]
        fresh = "normal" if name in _NORMAL else "uniform" if name in _UNIFORM else ""
        if name.startswith("bernoulli"):
            # With a probability that the network gives it is a choice; with a fixed one it may become a mask.
            network = any(tensor.requires_grad for tensor in given)
            self._count("choice" if network else "mask")
            fresh = "" if network else "mask"
        elif name in _OMITTING:
            if _training(args, kwargs):
                self._count("dropout")
        elif name in _OTHERS:
            self._count("choice")
        elif name == "scaled_dot_product_attention":
            if kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0):
                self._count("dropout")
        elif fresh:
            self._count(fresh)
        elif noises:
            fresh = self._used(name, noises[0], given)
        for tensor in made:
            if fresh and not tensor.requires_grad:
                self._noise[id(tensor)] = (weakref.ref(tensor), fresh)

    def _used(self, name: str, noise: str, given: list[Tensor]) -> str:
        """What an operation makes of noise: its kind afterwards, "" where it has become something else."""
        network = any(tensor.requires_grad for tensor in given)
        if not network:
            if noise == "uniform" and name in _COMPARING:
                return "mask"
            # Noise on the data is the data's.
            return noise if noise == "mask" or not any(self.origin(tensor) for tensor in given) else ""
        if noise == "mask" and name in ("mul", "div", "mul_", "div_", "true_divide", "__rmul__", "masked_fill", "masked_fill_"):
            self._count("dropout")
        elif noise in ("normal", "uniform") and name in ("add", "add_", "__radd__", "sub", "sub_", "__rsub__"):
            self._count("noise")
        elif noise in ("normal", "uniform") and name in ("mul", "mul_", "__rmul__", "addcmul"):
            self._count("scaled")
        return ""

    def _count(self, kind: str) -> None:
        self.draws[kind] = self.draws.get(kind, 0) + 1

    @property
    def sampled(self) -> bool:
        """Whether the draws that were seen look like sampling, and nothing like dropout or fixed noise."""
        return bool(self.draws) and not self.draws.keys() & {"dropout", "noise"}


def _training(args: Any, kwargs: Any) -> bool:
    """The argument `training` of a dropout function: by name, or the third of torch's own."""
    if "training" in kwargs or "train" in kwargs:
        return bool(kwargs.get("training", kwargs.get("train")))
    return bool(args[2]) if len(args) > 2 else True
