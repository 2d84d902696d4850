"""One time step of inference, S1 and S2.

    python benchmarks/inference.py [--quick] [--json FILE]

Batch 1, float32, `torch.inference_mode`. Every call is timed by itself; a variant's time is the median of its round, and
the least median of all rounds counts.

    S1  a step of the dense forecaster (4 layers, d_model 256, expand 4, N 16) from its carried state, against computing
        the window of the last 60 steps anew with the naive layers; for information, with ours
    S2  a step of one Mamba-2 block (d_model 256, expand 2, headdim 64, N 64) against the step of transformers' mixer with
        its cache, in the place of mamba2-minimal, which is not on the package index; for information, the step of
        mambapy's Mamba-1 (N 16, its own default)

The peers come with the extra `bench`; one that is not installed is named and left out.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from measuring import Row, main  # before torch

# isort: split
import torch
from dense_scan import NaiveSSM

from statewise.models.dense_ssm import DenseSSM
from statewise.models.forecaster import Forecaster
from statewise.models.mamba2 import Mamba2

WINDOW, D_MODEL, EXPAND, LAYERS = 60, 256, 4, 4
MAMBA_EXPAND, HEADDIM, MAMBA_STATE, CHUNK = 2, 64, 64, 64


def medians(variants: Mapping[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, float]:
    """Processor time of one call of each variant in microseconds: the least over the rounds of the round's median."""
    least = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for name, run in variants.items():
            run()
            taken = []
            for _ in range(calls):
                start = time.process_time()
                run()
                taken.append(time.process_time() - start)
            least[name] = min(least[name], 1e6 * statistics.median(taken))
    return least


def forecaster(kind: type[DenseSSM]) -> Forecaster:
    layers = [kind(d_model=D_MODEL, expand=EXPAND, d_state=16) for _ in range(LAYERS)]
    return Forecaster(layers, n_features=D_MODEL, n_outputs=1, residual=False, activation="none", glu=False).eval()


def dense_rows(rounds: int) -> list[Row]:
    model, naive = forecaster(DenseSSM), forecaster(NaiveSSM)
    naive.load_state_dict(model.state_dict())
    window = torch.randn(1, WINDOW, D_MODEL)
    x_t = torch.randn(1, D_MODEL)
    state = model(window)[1]
    naive_window = "recomputing the window, naive loop"
    times = medians(
        {
            "step": lambda: model.step(x_t, state),
            naive_window: lambda: naive(window),
            "recomputing the window": lambda: model(window, last_only=True),
        },
        rounds,
        calls=60,
    )
    size = f"d_model={D_MODEL} expand={EXPAND} N=16 layers={LAYERS} window={WINDOW} eager"
    print_times("dense forecaster", times)
    return [
        Row("S1", "float32", size, against, time / times["step"], 15.0 if against == naive_window else None, "higher")
        for against, time in times.items()
        if against != "step"
    ]


def mamba_rows(rounds: int) -> list[Row]:
    block = Mamba2(d_model=D_MODEL, expand=MAMBA_EXPAND, headdim=HEADDIM, d_state=MAMBA_STATE, chunk_size=CHUNK).eval()
    x_t = torch.randn(1, D_MODEL)
    state = block.initial_state(1)
    for _ in range(WINDOW):
        state = block.step(torch.randn(1, D_MODEL), state)[1]
    peers: dict[str, Callable[[], object]] = {}
    for name, make in (("transformers, chunk 64", transformers_step), ("mambapy, Mamba-1", mambapy_step)):
        try:
            peers[name] = make()
        except ImportError as error:
            print(f"{name} is left out: {error}")
    times = medians({"step": lambda: block.step(x_t, state), **peers}, rounds, calls=200)
    print_times("Mamba-2 block", times)
    size = f"d_model={D_MODEL} expand={MAMBA_EXPAND} headdim={HEADDIM} N={MAMBA_STATE} eager"
    return [
        Row("S2", "float32", size, against, times[against] / times["step"], bar, "higher")
        for against, bar in zip(peers, chain([1.4], [None] * len(peers)), strict=False)
    ]


def transformers_step() -> Callable[[], object]:
    """The step of transformers' mixer after a window; its cache is updated in place."""
    from transformers import DynamicCache, Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
    from transformers.utils import logging

    logging.set_verbosity_error()  # that it runs without its kernels is the point
    config = Mamba2Config(
        hidden_size=D_MODEL,
        expand=MAMBA_EXPAND,
        head_dim=HEADDIM,
        num_heads=D_MODEL * MAMBA_EXPAND // HEADDIM,
        state_size=MAMBA_STATE,
        n_groups=1,
        chunk_size=CHUNK,
        num_hidden_layers=1,
        use_bias=False,
    )
    mixer = Mamba2Mixer(config, layer_idx=0).eval()
    cache = DynamicCache(config=config)
    mixer(torch.randn(1, WINDOW, D_MODEL), cache=cache)
    x_t = torch.randn(1, 1, D_MODEL)
    return lambda: mixer(x_t, cache=cache)


def mambapy_step() -> Callable[[], object]:
    """The step of mambapy's Mamba-1 block; its Mamba-2 needs Triton."""
    from mambapy.mamba import MambaBlock, MambaConfig

    config = MambaConfig(d_model=D_MODEL, n_layers=1, expand_factor=MAMBA_EXPAND)
    block = MambaBlock(config).eval()
    cache: Any = (None, torch.zeros(1, config.d_inner, config.d_conv - 1))
    for _ in range(WINDOW):
        cache = block.step(torch.randn(1, D_MODEL), cache)[1]
    x_t = torch.randn(1, D_MODEL)
    return lambda: block.step(x_t, cache)


def print_times(what: str, times: Mapping[str, float]) -> None:
    print(f"{what}, us: " + "; ".join(f"{name} {time:.0f}" for name, time in times.items()))


def measure(quick: bool) -> list[Row]:
    """All rows, of eager steps: the project exports nothing yet."""
    rounds = 10 if quick else 20
    with torch.inference_mode():
        rows = [*dense_rows(rounds), *mamba_rows(rounds)]
    print("There are no rows of exported models, because the project exports none.")
    return rows


if __name__ == "__main__":
    main(__doc__, measure)
