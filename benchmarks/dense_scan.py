"""Speed and exactness of the dense state-space layer: bars D1 to D5 of the project's speed budget.

    python benchmarks/dense_scan.py [--json FILE]

One process, one thread, `time.process_time`, both variants interleaved in rounds, the minimum of at least ten rounds:
ratios taken like this hold to about 10 %. f+b is forward and backward. The layer has width 1024 and state 16, batch 8.

    D1  the layer's f+b at T 60 against the naive layer, which indexes `x[:, t]` inside its loop
    D2  the same against its two products alone (B x and C h), in whichever operand order is faster here
    D3  f+b at T 256 against the naive layer, and the layer's f+b at T 4096 against T 1024
    D4  a whole training step of the original's shape with 4 layers (loss on the last time step) against the same step
        with naive layers
    D5  errors of h, dv and dA_bar against the float64 definition, the largest of max|a - b| / max|b|
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.models.dense_ssm import DenseSSM
from statewise.models.forecaster import Forecaster
from statewise.scan import dense, recurrence

BATCH, D_MODEL, EXPAND, D_STATE = 8, 256, 4, 16
DTYPES = {"float64": torch.float64, "float32": torch.float32}


class NaiveSSM(DenseSSM):
    """The same layer as one writes it first: everything inside the loop, and autograd left to record it."""

    def forward(self, x: Tensor, state: Tensor | None = None, *, last_only: bool = False) -> tuple[Tensor, Tensor]:
        A_bar, B_bar = self.A, self.delta.mean() * self.B
        h = self.initial_state(x.shape[0]) if state is None else state
        outputs = []
        for t in range(x.shape[1]):
            h = h @ A_bar.T + x[:, t] @ B_bar.T
            outputs.append(h @ self.C.T)
        return torch.stack(outputs, dim=1), h


@dataclass(frozen=True)
class Row:
    """One line of the table; `ok` says whether the value meets its bar."""

    id: str
    dtype: str
    size: str
    against: str
    value: float
    bar: float
    better: str

    @property
    def ok(self) -> bool:
        return self.value >= self.bar if self.better == "higher" else self.value <= self.bar


def fastest(variants: dict[str, Callable[[], object]], rounds: int, repeats: int) -> dict[str, float]:
    """CPU seconds of one call of each variant: the minimum over interleaved rounds of the mean over repeats."""
    best = dict.fromkeys(variants, float("inf"))
    for run in variants.values():
        run()
    for _ in range(rounds):
        for name, run in variants.items():
            start = time.process_time()
            for _ in range(repeats):
                run()
            best[name] = min(best[name], (time.process_time() - start) / repeats)
    return best


def forward_backward(function: Callable[[Tensor], Tensor], layer: DenseSSM, t: int) -> Callable[[], None]:
    """f+b with gradients for the input and all parameters, as a layer in the middle of a stack has them."""
    x = torch.randn(BATCH, t, layer.d_inner, dtype=layer.A.dtype, requires_grad=True)
    g = torch.randn(BATCH, t, layer.d_inner, dtype=layer.A.dtype)

    def run() -> None:
        x.grad = None
        layer.zero_grad()
        function(x).view_as(g).backward(g)

    return run


def layers(dtype: torch.dtype) -> tuple[DenseSSM, NaiveSSM]:
    fast = DenseSSM(d_model=D_MODEL, expand=EXPAND, d_state=D_STATE).to(dtype)
    naive = NaiveSSM(d_model=D_MODEL, expand=EXPAND, d_state=D_STATE).to(dtype)
    naive.load_state_dict(fast.state_dict())
    return fast, naive


def layer_rows(name: str) -> list[Row]:
    fast, naive = layers(DTYPES[name])
    size = f"T=60 N={D_STATE} d={fast.d_inner} batch={BATCH}"

    def products(x: Tensor) -> Tensor:
        return F.linear(F.linear(x, fast.B), fast.C)

    def products_swapped(x: Tensor) -> Tensor:
        return (fast.B @ x.flatten(0, 1).T).T @ fast.C.T

    quick = fastest(
        {
            "fast": forward_backward(lambda x: fast(x)[0], fast, 60),
            "products": forward_backward(products, fast, 60),
            "swapped": forward_backward(products_swapped, fast, 60),
        },
        rounds=20,
        repeats=20,
    )
    against = fastest(
        {
            "fast": forward_backward(lambda x: fast(x)[0], fast, 60),
            "naive": forward_backward(lambda x: naive(x)[0], naive, 60),
        },
        rounds=10,
        repeats=3,
    )
    long = fastest(
        {
            "fast": forward_backward(lambda x: fast(x)[0], fast, 256),
            "naive": forward_backward(lambda x: naive(x)[0], naive, 256),
        },
        rounds=10,
        repeats=1,
    )
    growth = fastest(
        {
            "1024": forward_backward(lambda x: fast(x)[0], fast, 1024),
            "4096": forward_backward(lambda x: fast(x)[0], fast, 4096),
        },
        rounds=10,
        repeats=1,
    )
    double = name == "float64"
    two = min(quick["products"], quick["swapped"])
    return [
        Row("D1", name, size, "naive loop", against["naive"] / against["fast"], 3.5 if double else 5.0, "higher"),
        Row("D2", name, size, "its two products alone", quick["fast"] / two, 1.3 if double else 1.6, "lower"),
        Row("D3", name, size.replace("60", "256", 1), "naive loop", long["naive"] / long["fast"], 12.0, "higher"),
        Row("D3", name, size.replace("60", "4096", 1), "T=1024", growth["4096"] / growth["1024"], 5.0, "lower"),
    ]


def step_rows(name: str) -> list[Row]:
    """The original's model (no residual, nothing after C) with 4 layers; loss, clipping and Adam in both steps."""
    x = torch.randn(BATCH, 60, D_MODEL, dtype=DTYPES[name])
    target = torch.randn(BATCH, 1, 1, dtype=DTYPES[name])

    def step(kind: type[DenseSSM], last_only: bool) -> Callable[[], None]:
        stack = [kind(d_model=D_MODEL, expand=EXPAND, d_state=D_STATE) for _ in range(4)]
        model = Forecaster(stack, n_features=D_MODEL, n_outputs=1, residual=False, activation="none", glu=False).to(
            DTYPES[name]
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

        def run() -> None:
            optimizer.zero_grad()
            y, _ = model(x, last_only=last_only)
            F.mse_loss(y[:, -1:], target).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        return run

    best = fastest({"fast": step(DenseSSM, True), "naive": step(NaiveSSM, False)}, rounds=10, repeats=1)
    size = f"T=60 N={D_STATE} d_model={D_MODEL} expand={EXPAND} layers=4 batch={BATCH}"
    bar = 2.8 if name == "float64" else 3.5
    return [Row("D4", name, size, "naive loop", best["naive"] / best["fast"], bar, "higher")]


def transitions(n: int) -> dict[str, Tensor]:
    """Discrete transitions that break what is fast but not exact, in float64."""
    gaussian = torch.randn(n, n, dtype=torch.float64)
    triangular = torch.triu(gaussian, 1) * 0.3 + torch.diag(torch.linspace(-0.95, 0.95, n, dtype=torch.float64))
    jordan = 0.95 * torch.eye(n, dtype=torch.float64)
    for i in range(n - 1):
        jordan[i, i + 1] = float((i + 1) % 4 != 0)
    return {
        "random": gaussian * (0.9 / torch.linalg.eigvals(gaussian).abs().max()),
        "triangular": triangular,
        "Jordan 4": jordan,
        "orthogonal x 0.999": 0.999 * torch.linalg.qr(gaussian).Q,
    }


def error_rows(name: str) -> list[Row]:
    rows = []
    for kind, A_bar in transitions(D_STATE).items():
        for t in (60, 256, 1024, 4096):
            shape = (BATCH, t, D_STATE)
            given = (A_bar, torch.randn(shape), torch.zeros(BATCH, D_STATE))
            fast = [tensor.to(DTYPES[name]) for tensor in given]
            exact = [tensor.double().requires_grad_() for tensor in fast]
            fast = [tensor.requires_grad_() for tensor in fast]
            h, h_exact = dense.scan(*fast), recurrence.scan(*exact)
            g = torch.randn(shape).to(DTYPES[name])
            pairs = [
                (h, h_exact),
                *zip(
                    torch.autograd.grad(h, fast[:2], g),
                    torch.autograd.grad(h_exact, exact[:2], g.double()),
                    strict=True,
                ),
            ]
            worst = max(float(((a.double() - b).abs().max() / b.abs().max()).detach()) for a, b in pairs)
            bar = 1e-12 if name == "float64" else 5e-5
            rows.append(Row("D5", name, f"T={t} N={D_STATE} batch={BATCH} {kind}", "float64 loop", worst, bar, "lower"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Bars D1 to D5: speed and exactness of the dense state-space layer.")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [row for measure in (layer_rows, step_rows, error_rows) for name in DTYPES for row in measure(name)]
    rows.sort(key=lambda row: row.id)
    print(f"{'id':4}{'dtype':9}{'size':58}{'against':24}{'value':>9}{'bar':>12}  ok")
    for row in rows:
        sign = ">=" if row.better == "higher" else "<="
        ok = "yes" if row.ok else "NO"
        print(f"{row.id:4}{row.dtype:9}{row.size:58}{row.against:24}{row.value:9.3g}{sign:>4} {row.bar:<7g}  {ok}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([{**asdict(row), "ok": row.ok} for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
