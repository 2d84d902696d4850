"""What lies in one process of a tensor that several hold: on a mesh of one, and on paper for more."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

from statewise.callbacks.gradient_ledger import tensor_norms
from statewise.callbacks.nonfinite import finite, first_nonfinite_parameter
from statewise.health.steps.fingerprint import Fingerprint
from statewise.health.steps.sharded import ShardedFingerprint, fingerprint
from statewise.parallel.sharding import precision_of, shard
from statewise.parallel.shards import (
    _hypotenuse,
    cut_along_rows,
    elements,
    gathered,
    here,
    part_like,
    sharded,
    whole,
    whole_parameters,
)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    """One process, which is enough for DTensors."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def cut(tensor: Tensor, mesh: Any) -> Tensor:
    return distribute_tensor(tensor, mesh, [Shard(0)])


class Linear(nn.Linear):
    """With parameters in parts."""

    def __init__(self, mesh: Any) -> None:
        torch.manual_seed(0)
        super().__init__(3, 5)
        self.weight, self.bias = (nn.Parameter(cut(p.detach(), mesh)) for p in (self.weight, self.bias))


class DTensor:
    """Stands in for one that lies over several processes."""

    def __init__(self, shape: tuple[int, ...], processes: int) -> None:
        self.shape = shape
        self.device_mesh = self
        self._processes = processes

    def numel(self) -> int:
        return torch.Size(self.shape).numel()

    def size(self) -> int:
        return self._processes


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("shape", [(5, 3), (1,), (8, 2, 2), (7,), (4, 1)])
def test_the_elements_of_each_process_are_those_that_torch_gives_it(shape: tuple[int, ...], processes: int) -> None:
    values = torch.arange(torch.Size(shape).numel()).view(shape)
    parts = [part.reshape(-1).tolist() for part in values.chunk(processes)]
    parts += [[]] * (processes - len(parts))
    spans = elements(DTensor(shape, processes))
    assert [values.reshape(-1)[start:end].tolist() for start, end in spans] == parts


def test_plain_tensors_are_whole_where_they_are() -> None:
    plain = torch.randn(3, 2)
    assert not sharded(plain)
    assert here(plain) is whole(plain) is plain
    assert part_like(plain, plain) is plain
    assert cut_along_rows(plain)
    assert elements(plain) == [(0, 6)]


def test_a_part_shares_the_memory_of_its_tensor(mesh: Any) -> None:
    held = cut(torch.zeros(4, 2), mesh)
    here(held).add_(1)
    assert whole(held).tolist() == [[1, 1]] * 4


def test_several_tensors_are_gathered_at_once_whatever_they_are(mesh: Any) -> None:
    values = [torch.randn(5, 3), torch.randn(2), torch.randn(1, 4, dtype=torch.float64)]
    mixed = [cut(values[0], mesh), values[1], cut(values[2], mesh)]
    for found, expected in zip(gathered(mixed), values, strict=True):
        assert not sharded(found)
        assert torch.equal(found, expected)


def test_a_whole_tensor_is_cut_like_another_one(mesh: Any) -> None:
    values = torch.randn(5, 3)
    part = part_like(cut(torch.zeros(5, 3), mesh), values)
    assert sharded(part)
    assert torch.equal(whole(part), values)
    with pytest.raises(ValueError, match=r"a tensor of shape \[3, 5\] cannot be cut like one of shape \[5, 3\]"):
        part_like(cut(torch.zeros(5, 3), mesh), values.T)


def test_another_cut_than_along_the_rows_is_read_and_refused_to_be_written(mesh: Any) -> None:
    across = distribute_tensor(torch.ones(2, 4), mesh, [Shard(1)])
    assert not cut_along_rows(across)
    assert torch.equal(whole(across), torch.ones(2, 4))
    with pytest.raises(ValueError, match="cannot be set: only parts of rows can"):
        part_like(across, torch.ones(2, 4))


def test_parameters_in_another_cut_are_whole_to_be_read_only(mesh: Any) -> None:
    layer = nn.Linear(3, 5)
    layer.weight = nn.Parameter(distribute_tensor(torch.ones(5, 3), mesh, [Shard(1)]))
    with whole_parameters(layer):
        assert not sharded(layer.weight)
    with pytest.raises(ValueError, match="only parts of rows can"), whole_parameters(layer), torch.no_grad():
        layer.weight.zero_()


def test_parameters_are_whole_for_a_while_and_what_was_done_to_them_stays(mesh: Any) -> None:
    layer = Linear(mesh)
    held = dict(layer.named_parameters())
    before = {name: whole(p).clone() for name, p in held.items()}
    with whole_parameters(layer), torch.no_grad():
        assert not any(map(sharded, layer.parameters()))
        layer.weight.mul_(2.0)
    assert all(p is held[name] for name, p in layer.named_parameters()), "the objects that the optimizer holds"
    assert torch.equal(whole(layer.weight), 2 * before["weight"])
    assert torch.equal(whole(layer.bias), before["bias"])


def test_after_an_exception_they_are_as_before(mesh: Any) -> None:
    layer = Linear(mesh)
    before = whole(layer.weight).clone()
    with pytest.raises(RuntimeError, match="must match"), whole_parameters(layer), torch.no_grad():
        layer.weight.mul_(2.0).add_(torch.ones(7))
    assert sharded(layer.weight)
    assert torch.equal(whole(layer.weight), before)


def test_nothing_happens_to_a_module_that_is_whole() -> None:
    layer = nn.Linear(3, 5)
    held = dict(layer.named_parameters())
    with whole_parameters(layer):
        assert all(p is held[name] for name, p in layer.named_parameters())


def test_norms_are_those_of_plain_tensors(mesh: Any) -> None:
    values = [torch.randn(5, 3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), torch.randn(7, dtype=torch.float64)]
    expected = tensor_norms(values)
    assert torch.equal(tensor_norms([cut(values[0], mesh), values[1], cut(values[2], mesh)]), expected)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [([3.0, 4.0], 5.0), ([0.0, 0.0], 0.0), ([3e-200, 4e-200], 5e-200), ([3e200, 4e200], 5e200), ([torch.inf, 1.0], torch.inf)],
)
def test_the_norm_of_the_whole_has_the_range_of_its_parts(parts: list[float], expected: float) -> None:
    found = float(_hypotenuse(torch.tensor(parts, dtype=torch.float64)[:, None]))
    assert found == pytest.approx(expected, rel=1e-15)


def test_the_norm_of_parts_one_of_which_is_no_number_is_none() -> None:
    assert _hypotenuse(torch.tensor([[torch.nan], [1.0]], dtype=torch.float64)).isnan().all()


def test_an_element_that_is_not_finite_is_found_in_its_part(mesh: Any) -> None:
    layer = Linear(mesh)
    assert first_nonfinite_parameter(layer) is None
    with torch.no_grad():
        here(layer.bias)[2] = torch.inf
    assert not finite(layer.bias)
    assert first_nonfinite_parameter(layer) == "bias"


@pytest.mark.parametrize("block", [4, 32])
def test_the_block_of_a_sharded_tensor_is_that_of_the_whole_one(mesh: Any, block: int) -> None:
    layer = Linear(mesh)
    plain = nn.Linear(3, 5)
    plain.load_state_dict({name: whole(p) for name, p in layer.named_parameters()})
    for module in (layer, plain):
        for parameter in module.parameters():
            parameter.grad = parameter.detach() * 3
    layer.bias.grad = plain.bias.grad = None
    found, expected = fingerprint(list(layer.parameters()), block), fingerprint(list(plain.parameters()), block)
    assert type(found) is ShardedFingerprint
    assert type(expected) is Fingerprint
    parts = {"values": found.values().numpy(), "gradients": found.gradients().numpy()}
    blocks, largest = found.collect(parts, {0: 2.5})
    assert largest == {0: 2.5}
    torch.testing.assert_close(torch.from_numpy(blocks["values"]), expected.values().double(), rtol=0, atol=0)
    torch.testing.assert_close(
        torch.from_numpy(blocks["gradients"]), expected.gradients().double(), rtol=0, atol=0, equal_nan=True
    )


def test_float64_is_a_plugin_where_lightning_refuses_its_name() -> None:
    precision, plugins = precision_of(SimpleNamespace(strategy="fsdp", precision="64-true"))
    assert precision is None
    assert [plugin.precision for plugin in plugins] == ["64-true"]
    assert precision_of(SimpleNamespace(strategy="fsdp", precision="bf16-mixed")) == ("bf16-mixed", [])
    assert precision_of(SimpleNamespace(strategy="ddp", precision="64-true")) == ("64-true", [])


def test_a_precision_that_scales_the_loss_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        ValueError, match=r"hardware.precision=16-mixed is not possible with hardware.strategy=fsdp, .* use bf16"
    ):
        precision_of(SimpleNamespace(strategy="fsdp", precision="16-mixed"))


def test_a_parameter_of_a_single_number_is_refused_by_its_name(mesh: Any) -> None:
    model = nn.Linear(2, 2)
    model.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"and scale is a single number: make it a tensor of one element, or use hardware=ddp"):
        shard(model, mesh)


def test_sharded_modules_keep_the_names_of_their_classes(mesh: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    shard(model, mesh)
    assert all(map(sharded, model.parameters()))
    assert type(model).__name__ == "Sequential"
    held = list(model.parameters())
    shard(model, mesh)
    assert all(one is other for one, other in zip(model.parameters(), held, strict=True)), "cut once"
