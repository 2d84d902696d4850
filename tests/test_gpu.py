"""What only a CUDA device can show: the same numbers as on the CPU, and whole runs."""

import pytest
import torch

from statewise.scan import dense, recurrence

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
