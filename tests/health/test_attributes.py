"""What a module holds outside its parameter tree."""

import functools
from typing import Any

import torch
from torch import nn

from statewise.health.attributes import scan_attributes


class Holder(nn.Module):
    def __init__(self, **things: Any) -> None:
        super().__init__()
        self.registered = nn.Linear(2, 2)
        for name, value in things.items():
            setattr(self, name, value)


class Plain:
    def __init__(self) -> None:
        self.inner = [nn.Parameter(torch.ones(2))]


def found(**things: Any) -> dict[str, str]:
    return {fact.name: fact.kind for fact, _ in scan_attributes(Holder(**things)).values()}


def test_hidden_layers_and_tensors_are_found_in_whatever_holds_them() -> None:
    layer = nn.Linear(2, 2, bias=False)
    assert found(layers=[layer]) == {"layers[0].weight": "module"}
    assert found(layers={"in": (layer,)}) == {"layers['in'][0].weight": "module"}
    assert found(call=functools.partial(layer.forward)) == {"call.func.__self__.weight": "module"}
    assert found(call=lambda x: layer(x)) == {"call.<layer>.weight": "module"}
    assert found(plain=Plain()) == {"plain.inner[0]": "parameter"}
    assert found(A=torch.ones(2)) == {"A": "tensor"}


def test_what_is_registered_or_no_float_is_not_hidden() -> None:
    assert found(count=torch.ones(2, dtype=torch.long), name="x", size=3) == {}
    module = Holder()
    module.again = [module.registered]
    assert scan_attributes(module) == {}


def test_buffers_are_found_but_running_statistics_are_not() -> None:
    module = Holder(norm=nn.BatchNorm1d(2))
    module.registered.register_buffer("dt", torch.ones(2))
    assert {fact.name: fact.kind for fact, _ in scan_attributes(module).values()} == {"registered.dt": "buffer"}


def test_cycles_and_opaque_objects_end_the_search() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert found(loop=loop) == {}
    module = Holder(plain=Plain())
    assert scan_attributes(module, opaque=(Plain,)) == {}
    assert scan_attributes(module, skip=frozenset({"plain"})) == {}


def test_properties_of_other_peoples_objects_are_not_run() -> None:
    class Explodes:
        @property
        def weights(self) -> Any:
            raise AssertionError("looked")

    assert found(thing=Explodes()) == {}
