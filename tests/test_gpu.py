"""What only a CUDA device can show: the same numbers as on the CPU, and whole runs."""

import pytest
import torch

from statewise.scan import dense, recurrence, ssd, ssd_triton

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("t", [1, 37, 60, 65, 500, 1000])
def test_the_scan_on_the_device_equals_the_definition_on_the_cpu(t):
    torch.manual_seed(t)
    A_bar = torch.linalg.qr(torch.randn(16, 16, dtype=torch.float64))[0] * 0.99
    v, h0 = torch.randn(7, t, 16, dtype=torch.float64), torch.randn(7, 16, dtype=torch.float64)
    leaves = [tensor.clone().requires_grad_() for tensor in (A_bar, v, h0)]
    on_device = [tensor.cuda().requires_grad_() for tensor in (A_bar, v, h0)]
    expected, found = recurrence.scan(*leaves), dense.scan(*on_device)
    upstream = torch.randn_like(expected)
    expected.backward(upstream)
    found.backward(upstream.cuda())
    pairs = [(expected, found), *((leaf.grad, other.grad) for leaf, other in zip(leaves, on_device, strict=True))]
    for reference, value in pairs:
        assert (value.cpu() - reference).abs().max() <= 1e-12 * reference.abs().max()


needs_kernels = pytest.mark.skipif(not ssd_triton.available(), reason="needs mamba-ssm: install the extra cuda")


def ssd_problem(t, dtype, groups=2):
    """Inputs of Mamba-2's recurrence on the CPU, in float64, rounded to what `dtype` can hold."""
    torch.manual_seed(t)
    b, h, p, n = 3, 4, 16, 16
    x, B, C = torch.randn(b, t, h, p), torch.randn(b, t, groups, n), torch.randn(b, t, groups, n)
    dt, A, h0 = torch.rand(b, t, h) * 0.2, -torch.rand(h) * 4 - 0.5, torch.randn(b, h, p, n)
    x, B, C = (tensor.to(dtype) for tensor in (x, B, C))
    return [tensor.double() for tensor in (x, dt, A, B, C, h0)]


def ssd_results(function, inputs, device, dtype, **options):
    """Outputs, last state and all gradients; the step, A and the state stay float32 or wider, as in the layer."""
    wide = torch.promote_types(dtype, torch.float32)
    kinds = (dtype, wide, wide, dtype, dtype, wide)
    leaves = [tensor.to(device, kind).requires_grad_() for tensor, kind in zip(inputs, kinds, strict=True)]
    y, state = function(*leaves, **options)
    torch.manual_seed(0)
    weights = [torch.randn(part.shape, dtype=torch.float64).to(device, part.dtype) for part in (y, state)]
    gradients = torch.autograd.grad([y, state], leaves, weights)
    names = ("y", "state", "dx", "ddt", "dA", "dB", "dC", "dh0")
    return dict(zip(names, (part.detach().cpu().double() for part in (y, state, *gradients)), strict=True))


def largest_errors(found, expected):
    return {name: float((found[name] - expected[name]).abs().max() / expected[name].abs().max()) for name in expected}


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 5e-5), (torch.bfloat16, 2e-2)],
    ids=["f64", "f32", "bf16"],
)
@pytest.mark.parametrize("t", [1, 37, 60, 65, 500])
def test_mamba2s_scan_in_torch_on_the_device_equals_the_definition_on_the_cpu(t, dtype, tolerance):
    inputs = ssd_problem(t, dtype)
    expected = ssd_results(recurrence.ssd, inputs, "cpu", torch.float64)
    errors = largest_errors(ssd_results(ssd.ssd, inputs, "cuda", dtype), expected)
    assert max(errors.values()) <= tolerance, errors


@needs_kernels
@pytest.mark.parametrize(("groups", "chunk_size"), [(1, 64), (2, 16), (4, 256)])
@pytest.mark.parametrize("t", [1, 37, 60, 65, 500])
# In float32 Triton multiplies in TF32.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-3), (torch.bfloat16, 3e-2)], ids=["f32", "bf16"])
def test_mamba2s_kernels_equal_the_definition_on_the_cpu_and_the_torch_form(dtype, tolerance, t, groups, chunk_size):
    inputs = ssd_problem(t, dtype, groups)
    found = ssd_results(ssd_triton.ssd, inputs, "cuda", dtype, chunk_size=chunk_size)
    for other in (
        ssd_results(recurrence.ssd, inputs, "cpu", torch.float64),
        ssd_results(ssd.ssd, inputs, "cuda", dtype, chunk_size=chunk_size),
    ):
        errors = largest_errors(found, other)
        assert max(errors.values()) <= tolerance, errors


@needs_kernels
def test_the_kernels_are_what_auto_takes_on_the_device():
    assert ssd_triton.choose("auto", torch.empty(1, device="cuda")) is ssd_triton.ssd
    assert ssd_triton.choose("auto", torch.empty(1, device="cuda", dtype=torch.float64)) is ssd.ssd
    assert ssd_triton.choose("torch", torch.empty(1, device="cuda")) is ssd.ssd


MODELS = {"mamba2": ["model.d_model=16", "model.headdim=16", "model.d_state=16"], "diagonal_ssm": []}


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("model", MODELS)
def test_a_run_of_every_other_state_space_model_on_the_device_is_healthy(model, precision, train):
    outcome = train(f"model={model}", *MODELS[model], "hardware=gpu", f"hardware.precision={precision}")
    assert outcome.code == 0, outcome.err
    assert outcome.summary["health"]["verdict"] == "healthy"


@pytest.mark.parametrize("model", MODELS)
def test_a_run_of_every_other_state_space_model_on_the_device_gives_the_numbers_of_the_cpu(model, train):
    on_cpu = train(f"model={model}", *MODELS[model], "hardware.precision=64-true")
    on_gpu = train(f"model={model}", *MODELS[model], "hardware=gpu", "hardware.precision=64-true")
    assert on_gpu.summary["test"]["mse"] == pytest.approx(on_cpu.summary["test"]["mse"], rel=1e-9)


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "16-mixed"])
def test_a_run_on_the_device_is_healthy(precision, train):
    outcome = train("hardware=gpu", f"hardware.precision={precision}")
    assert outcome.code == 0, outcome.err
    assert outcome.summary["health"]["verdict"] == "healthy"


def test_a_run_on_the_device_gives_the_numbers_of_the_cpu(train):
    on_cpu = train("hardware.precision=64-true")
    on_gpu = train("hardware=gpu", "hardware.precision=64-true")
    assert on_gpu.summary["test"]["mse"] == pytest.approx(on_cpu.summary["test"]["mse"], rel=1e-9)


def test_a_number_that_is_not_finite_is_named_with_its_true_first_step(train, monkeypatch):
    from statewise.task import Forecasting

    step = Forecasting.training_step

    def poisoned(self, batch, batch_idx):
        if self.global_step == 3:
            batch = batch._replace(inputs=batch.inputs * float("nan"))
        return step(self, batch, batch_idx)

    monkeypatch.setattr(Forecasting, "training_step", poisoned)
    outcome = train("hardware=gpu", "trainer.log_every_n_steps=5")
    assert outcome.code == 1
    assert outcome.summary["status"] == "diverged"
    assert "step 4" in outcome.err


needs_two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@needs_two_devices
@pytest.mark.parametrize("hardware", ["ddp", "fsdp"])
def test_a_run_on_two_devices_gives_the_numbers_of_one(hardware, train):
    one = train("hardware=gpu", "hardware.precision=64-true")
    two = train(f"hardware={hardware}", "hardware.devices=2", "hardware.precision=64-true")
    assert two.code == 0, two.err
    assert two.summary["health"]["verdict"] == "healthy"
    assert two.summary["test"]["mse"] == pytest.approx(one.summary["test"]["mse"], rel=1e-9)


@needs_two_devices
@pytest.mark.parametrize("hardware", ["ddp", "fsdp"])
def test_a_frozen_parameter_is_found_on_two_devices(hardware, train):
    outcome = train(f"hardware={hardware}", "hardware.devices=2", "fault=frozen_A")
    assert outcome.code == 1
    assert "frozen-by-mistake: `model.ssm_0.A`" in outcome.err


@pytest.fixture
def mesh(tmp_path):
    """One process and its device: enough for parameters in parts."""
    import torch.distributed as dist
    from torch.distributed.tensor import init_device_mesh

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield init_device_mesh("cuda", (1,))
    finally:
        dist.destroy_process_group()


def test_a_sharded_model_on_the_device_computes_what_the_whole_one_does(mesh):
    from statewise.callbacks.gradient_ledger import tensor_norms
    from statewise.models.dense_ssm import dense_ssm
    from statewise.parallel.sharding import shard
    from statewise.parallel.shards import whole, whole_parameters

    def model():
        torch.manual_seed(0)
        made = dense_ssm(n_features=2, n_outputs=1, horizon=1, target_inputs=None, targets_are_levels=True, d_state=5)
        return made.double().cuda()

    plain, cut = model(), model()
    shard(cut, mesh)
    x = torch.randn(4, 20, 2, dtype=torch.float64, device="cuda")
    for either in (plain, cut):
        either(x)[0].square().mean().backward()
    gradients = [[p.grad for p in either.parameters()] for either in (plain, cut)]
    expected, found = (tensor_norms(several) for several in gradients)
    assert (expected - found).abs().max() <= 1e-12 * expected.max()
    with whole_parameters(cut.ssm_0):
        cut.ssm_0.scale_transition_(0.5)
    assert torch.equal(whole(cut.ssm_0.A), plain.ssm_0.A.detach() * 0.5)
