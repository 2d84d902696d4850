"""Speed and exactness of the dense state-space layer: D1 to D5.

    python benchmarks/dense_scan.py [--quick] [--json FILE]

f+b is forward and backward. The layer has width 1024 and state 16, batch 8.

    D1  the layer's f+b at T 60 against the naive layer, which indexes `x[:, t]` inside its loop; for information, also
        against the same loop over `x.unbind(1)`, which spares autograd a tensor of x's size at every step
    D2  the same against its two products alone (B x and C h), in whichever operand order is faster here
    D3  f+b at T 256 against the naive layer, and the layer's f+b at T 4096 against T 1024
    D4  a whole training step of the original's shape with 4 layers (loss on the last time step) against the same step
        with naive layers
    D5  errors of h, dv and dA_bar against the float64 definition, the largest of max|a - b| / max|b|
"""

from collections.abc import Callable

from measuring import DTYPES, Row, fastest, main  # before torch

# isort: split
import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.models.dense_ssm import DenseSSM
from statewise.models.forecaster import Forecaster
from statewise.scan import dense, recurrence

BATCH, D_MODEL, EXPAND, D_STATE = 8, 256, 4, 16


class NaiveSSM(DenseSSM):
    """The same layer as one writes it first: everything inside the loop, and autograd left to record it."""

    unbound = False
    """Whether the loop goes over `x.unbind(1)` instead of indexing `x[:, t]`."""

    def forward(self, x: Tensor, state: Tensor | None = None, *, last_only: bool = False) -> tuple[Tensor, Tensor]:
        A_bar, B_bar = self.A, self.delta.mean() * self.B
        h = self.initial_state(x.shape[0]) if state is None else state
        slices = x.unbind(1) if self.unbound else (x[:, t] for t in range(x.shape[1]))
        outputs = []
        for x_t in slices:  # (b d)
            h = h @ A_bar.T + x_t @ B_bar.T
            outputs.append(h @ self.C.T)
        return torch.stack(outputs, dim=1), h


def forward_backward(function: Callable[[Tensor], Tensor], layer: DenseSSM, t: int) -> Callable[[], None]:
    """f+b with gradients for the input and all parameters, as a layer in the middle of a stack has them."""
    x = torch.randn(BATCH, t, layer.d_inner, dtype=layer.A.dtype, requires_grad=True)
    g = torch.randn(BATCH, t, layer.d_inner, dtype=layer.A.dtype)

    def run() -> None:
        x.grad = None
        layer.zero_grad()
        function(x).view_as(g).backward(g)

    return run


class UnboundSSM(NaiveSSM):
    """The naive layer with the one remedy that everybody who profiles it finds."""

    unbound = True


def layers(dtype: torch.dtype) -> list[DenseSSM]:
    """The layer, the naive one and the naive one over unbound time steps, with the same parameters."""
    kinds = (DenseSSM, NaiveSSM, UnboundSSM)
    made = [kind(d_model=D_MODEL, expand=EXPAND, d_state=D_STATE).to(dtype) for kind in kinds]
    for other in made[1:]:
        other.load_state_dict(made[0].state_dict())
    return made


def layer_rows(name: str, quick: bool) -> list[Row]:
    fast, naive, unbound = layers(DTYPES[name])
    size = f"N={D_STATE} d={fast.width} batch={BATCH}"

    def products(x: Tensor) -> Tensor:
        return F.linear(F.linear(x, fast.B), fast.C)

    def products_swapped(x: Tensor) -> Tensor:
        return (fast.B @ x.flatten(0, 1).T).T @ fast.C.T

    def layer(which: DenseSSM, t: int) -> Callable[[], None]:
        return forward_backward(lambda x: which(x)[0], which, t)

    alone = fastest(
        {
            "fast": layer(fast, 60),
            "products": forward_backward(products, fast, 60),
            "swapped": forward_backward(products_swapped, fast, 60),
        },
        rounds=20,
        repeats=10 if quick else 20,
    )
    loops = {"fast": layer(fast, 60), "naive": layer(naive, 60), "unbound": layer(unbound, 60)}
    against = fastest(loops, rounds=10, repeats=2 if quick else 4)
    long = fastest({"fast": layer(fast, 256), "naive": layer(naive, 256)}, rounds=10)
    growth = fastest({"1024": layer(fast, 1024), "4096": layer(fast, 4096)}, rounds=10)
    double = name == "float64"
    two = min(alone["products"], alone["swapped"])
    return [
        Row("D1", name, f"T=60 {size}", "naive loop", against["naive"] / against["fast"], 3.5 if double else 5.0, "higher"),
        Row("D1", name, f"T=60 {size}", "naive loop, unbound", against["unbound"] / against["fast"], None, "higher"),
        Row("D2", name, f"T=60 {size}", "its two products alone", alone["fast"] / two, 1.3 if double else 1.6, "lower"),
        Row("D3", name, f"T=256 {size}", "naive loop", long["naive"] / long["fast"], 12.0, "higher"),
        Row("D3", name, f"T=4096 {size}", "T=1024", growth["4096"] / growth["1024"], 5.0, "lower"),
    ]


def step_rows(name: str, _: bool) -> list[Row]:
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


def error_rows(name: str, quick: bool) -> list[Row]:
    rows = []
    for kind, A_bar in transitions(D_STATE).items():
        for t in (60, 256) if quick else (60, 256, 1024, 4096):
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


def measure(quick: bool) -> list[Row]:
    """All rows; quick has fewer repeats in a round, and errors up to T 256 only."""
    rows = [row for rows_of in (layer_rows, step_rows, error_rows) for name in DTYPES for row in rows_of(name, quick)]
    return sorted(rows, key=lambda row: row.id)


if __name__ == "__main__":
    main(__doc__, measure)
