"""Speed, memory and exactness of the Mamba-2 block: M1, M2 and M4.

    python benchmarks/mamba2.py [--quick] [--json FILE]

f+b is forward and backward with gradients for the input and all parameters. The block has d_model 256, expand 2, headdim
64, one group, float32, batch 8.

    M1  f+b at T 60 against the tuned peer, and against its default; for information, also against the naive loop (torch's
        convolution, then one step after another) and mambapy's Mamba-1 block, which is another model (its Mamba-2 needs
        Triton)
    M2  f+b at T 512 and 2048 against the tuned peer, and peak memory of f+b at T 2048 in units of the leanest peer's
    M4  float64 error of the block against a loop over its own step: outputs, last state, and up to T 500 all gradients,
        the largest of max|a - b| / max|b|

The peer is transformers' Mamba2Mixer in plain torch, with the chunk length that is fastest, or for memory leanest, for it at
that size; the rows name it. It is given the block's weights, and that outputs and all gradients agree is checked before
anything is timed. Peak memory is the rise of the process's resident memory over one f+b, after what earlier calls freed
has been given back to the system. The peers come with the extra `bench`; one that is not installed is named and left out.
"""

import gc
from collections.abc import Callable
from functools import partial

from measuring import MIB, Row, fastest, main, peak_memory  # before torch

# isort: split
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.models.mamba2 import Mamba2
from statewise.scan import recurrence

D_MODEL, HEADDIM, BATCH = 256, 64, 8
DEFAULT_CHUNK = 256
# Those that are tried; others have been slower everywhere, and with --quick so have those that it leaves out.
CHUNKS = {60: (16, 20, 30, 32, 60, 64), 512: (32, 64, 128, 256), 2048: (32, 64, 128)}
QUICK_CHUNKS = {60: (20, 30, 60), 512: (32, 64), 2048: (64,)}
BARS = {(60, 16): 1.25, (60, 64): 1.4, (60, 128): 1.7, (512, 16): 1.15, (512, 64): 1.25, (512, 128): 1.3, (2048, 64): 1.6}
AGREEMENT = 1e-4
Variants = dict[str, Callable[[], object]]


class NaiveMamba2(Mamba2):
    """The same layer as one writes it first, left to autograd."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, xBC, dt = torch.split(self.in_proj(x), [self.d_inner, len(self.conv_weight), self.n_heads], dim=-1)
        past = F.pad(xBC.transpose(1, 2), (self.conv_weight.shape[1] - 1, 0))
        xBC = F.silu(F.conv1d(past, self.conv_weight[:, None], self.conv_bias, groups=len(self.conv_weight))).transpose(1, 2)
        inputs, B, C = self._split(xBC)
        dt, h0 = F.softplus(dt + self.dt_bias), self.initial_state(len(x)).ssm
        y, h = recurrence.ssd(inputs, dt, -torch.exp(self.A_log), B, C, h0)
        y = (y + self.D[:, None] * inputs).flatten(2)
        return self.out_proj(self.norm.plain(y, z)), h


def block(n: int, kind: type[Mamba2] = Mamba2) -> Mamba2:
    """A block whose every parameter matters: none is left at the ones or zeros that it starts with."""
    torch.manual_seed(n)
    made = kind(d_model=D_MODEL, d_state=n, headdim=HEADDIM)
    for parameter in (made.D, made.norm.weight):
        nn.init.uniform_(parameter, 0.5, 1.5)
    return made


def mixer(ours: Mamba2, chunk: int) -> nn.Module:
    """transformers' mixer with the block's weights."""
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
    from transformers.utils import logging

    logging.set_verbosity_error()  # it warns that the kernels it would rather use are missing
    config = Mamba2Config(
        hidden_size=ours.width,
        expand=ours.d_inner // ours.width,
        head_dim=ours.headdim,
        num_heads=ours.n_heads,
        state_size=ours.d_state,
        n_groups=ours.n_groups,
        conv_kernel=ours.conv_weight.shape[1],
        chunk_size=chunk,
        layer_norm_epsilon=ours.norm.eps,
        num_hidden_layers=1,
        use_bias=False,
    )
    made = Mamba2Mixer(config, layer_idx=0)
    weights = ours.state_dict()
    weights["conv1d.weight"], weights["conv1d.bias"] = weights.pop("conv_weight")[:, None], weights.pop("conv_bias")
    made.load_state_dict(weights)
    return made


def mamba1(n: int) -> nn.Module:
    from mambapy.mamba import MambaBlock, MambaConfig

    return MambaBlock(MambaConfig(d_model=D_MODEL, n_layers=1, d_state=n))


def installed() -> set[str]:
    """Which peers there are; those that are missing are named."""
    found = set()
    for name, make in {"transformers": lambda: mixer(block(16), 64), "mambapy": lambda: mamba1(16)}.items():
        try:
            make()
            found.add(name)
        except ImportError as error:
            print(f"{name} is left out: {error}")
    return found


def forward_backward(model: nn.Module, t: int) -> Callable[[], object]:
    """f+b of a layer in the middle of a stack; it returns the output, and leaves the gradients where they are."""
    torch.manual_seed(t)
    x, g = torch.randn(BATCH, t, D_MODEL, requires_grad=True), torch.randn(BATCH, t, D_MODEL)

    def run() -> dict[str, Tensor]:
        x.grad = None
        model.zero_grad()
        y = model(x)
        y = y[0] if isinstance(y, tuple) else y
        y.backward(g)
        return {"y": y.detach(), "x": x.grad}

    return run


def check(ours: Mamba2, peer: nn.Module, t: int) -> None:
    """That both compute the same function: outputs, gradient of the input and of every parameter.

    Raises:
        RuntimeError: they do not, so that a comparison of their times would mean nothing.
    """
    both = []
    for model in (ours, peer):
        found = forward_backward(model, t)()
        gradients = {name.replace("conv1d.", "conv_"): p.grad.squeeze() for name, p in model.named_parameters()}
        both.append(found | gradients)
    for name, expected in both[0].items():
        difference = float((both[1][name] - expected).abs().max() / expected.abs().max())
        if not difference <= AGREEMENT:
            raise RuntimeError(f"the blocks differ at T={t}: {name} by {difference:.1e}")


def tuned(ours: Mamba2, t: int, chunks: tuple[int, ...], rounds: int) -> int:
    """The chunk length with which the peer is fastest."""
    times = fastest({str(chunk): forward_backward(mixer(ours, chunk), t) for chunk in chunks}, rounds)
    print(f"transformers at {size(ours, t)}, ms by chunk: " + ", ".join(f"{k} {1e3 * v:.1f}" for k, v in times.items()))
    return int(min(times, key=lambda chunk: times[chunk]))


def size(ours: Mamba2, t: int, batch: int = BATCH) -> str:
    return f"T={t} N={ours.d_state} d_model={D_MODEL} headdim={HEADDIM} batch={batch}"


def time_rows(name: str, n: int, t: int, peers: set[str], *, quick: bool) -> list[Row]:
    """Ours against the tuned peer; at T 60 also against its default and, for information, what is slower still."""
    ours = block(n)
    run = forward_backward(ours, t)
    variants: Variants = {"ours": run}
    bars: dict[str, float | None] = {}
    if "transformers" in peers:
        best = tuned(ours, t, (QUICK_CHUNKS if quick else CHUNKS)[t], 2 if quick else 5)
        chosen = {f"transformers, chunk {best}, its best": (best, BARS[t, n])}
        if t == 60:
            chosen[f"transformers, chunk {DEFAULT_CHUNK}, its default"] = (DEFAULT_CHUNK, 6.0)
        for against, (chunk, bar) in chosen.items():
            peer = mixer(ours, chunk)
            check(ours, peer, t)
            variants[against], bars[against] = forward_backward(peer, t), bar
    times = fastest(variants, 10 if quick or t > 60 else 20)
    if t == 60 and (n == 16 or not quick):
        naive = block(n, NaiveMamba2)
        check(ours, naive, t)
        slow: Variants = {"ours": run, "naive loop": forward_backward(naive, t)}
        if "mambapy" in peers:
            slow["mambapy, Mamba-1"] = forward_backward(mamba1(n), t)
        # Without a bar, and slow: a few rounds tell enough.
        times |= {against: time for against, time in fastest(slow, 3).items() if against != "ours"}
    print(f"{size(ours, t)}, ms: " + "; ".join(f"{against} {1e3 * time:.1f}" for against, time in times.items()))
    return [
        Row(name, "float32", f"{size(ours, t)} f+b", against, time / times["ours"], bars.get(against), "higher")
        for against, time in times.items()
        if against != "ours"
    ]


def memory_rows(n: int, t: int, chunks: tuple[int, ...]) -> list[Row]:
    ours = block(n)
    makers: dict[str, Callable[[], nn.Module]] = {"ours": lambda: ours}
    makers |= {f"transformers, chunk {chunk}": partial(mixer, ours, chunk) for chunk in chunks}
    peaks = {}
    for name, make in makers.items():
        run = forward_backward(make(), t)
        run()
        peaks[name] = peak_memory(run)
        gc.collect()
    print(f"{size(ours, t)}, MiB: " + "; ".join(f"{name} {peak / MIB:.0f}" for name, peak in peaks.items()))
    mine = peaks.pop("ours")
    leanest = min(peaks, key=lambda name: peaks[name])
    what = f"{size(ours, t)} peak memory"
    return [Row("M2", "float32", what, f"{leanest}, its leanest", mine / peaks[leanest], 0.7, "lower")]


def error_rows(lengths: tuple[int, ...]) -> list[Row]:
    rows = []
    for t in lengths:
        ours = block(64).double()
        torch.manual_seed(t)
        x, g = torch.randn(1, t, D_MODEL, dtype=torch.float64), torch.randn(1, t, D_MODEL, dtype=torch.float64)
        leaves = [x.requires_grad_(), *ours.parameters()] if t <= 500 else []
        with torch.set_grad_enabled(bool(leaves)):
            y, state = ours(x)
            loop, outputs = ours.initial_state(1), []
            for x_t in x.unbind(1):
                y_t, loop = ours.step(x_t, loop)
                outputs.append(y_t)
            expected = torch.stack(outputs, dim=1)
        pairs = [(y, expected), *zip(state, loop, strict=True)]
        if leaves:
            # The last state takes part, so that its gradient is compared as well.
            weights = [g, torch.ones_like(state.ssm)]
            found = torch.autograd.grad([y, state.ssm], leaves, weights)
            pairs += zip(found, torch.autograd.grad([expected, loop.ssm], leaves, weights), strict=True)
        worst = max(float(((a - b).abs().max() / b.abs().max()).detach()) for a, b in pairs)
        what = "outputs, state, gradients" if leaves else "outputs, state"
        rows.append(Row("M4", "float64", f"{size(ours, t, 1)} {what}", "loop over its step", worst, 1e-12, "lower"))
    return rows


def measure(quick: bool) -> list[Row]:
    peers = installed()
    sizes = [(n, 60) for n in (16, 64, 128)]
    if "transformers" in peers:
        sizes += [(64, 512)] if quick else [(16, 512), (64, 512), (128, 512), (64, 2048)]
    rows = [row for n, t in sizes for row in time_rows("M1" if t == 60 else "M2", n, t, peers, quick=quick)]
    if "transformers" in peers:
        rows += memory_rows(64, 2048, (QUICK_CHUNKS if quick else CHUNKS)[2048])
    return rows + error_rows((1, 60, 65, 500) if quick else (1, 37, 60, 64, 65, 500, 2048))


if __name__ == "__main__":
    main(__doc__, measure)
