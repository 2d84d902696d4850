"""One-minute bars with a planted signal of known strength: whatever finds more has leaked, whatever finds less has not.

The log return from close to close follows an autoregression of order 5 through all bars of an instrument, a session's
first bar included:
    r_t = phi_1 r_(t-1) + ... + phi_5 r_(t-5) + sigma_t e_t          e_t independent, standard normal
sigma_t (the volatility) is a stationary process of its own, independent of e. The first term is the expectation of r_t
given the past: the best forecast, linear in the last five rows. Its correlation with r_t is the information coefficient,
    ic = sqrt(1 - prod_k (1 - kappa_k^2))
with kappa the partial autocorrelations (Box, Jenkins, Reinsel, Time Series Analysis, section 3.2.6). All |kappa_k| are
equal here, so that the five rows matter alike, and |kappa| < 1 makes every ic below 1 a stationary process.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from scipy.signal import lfilter

from statewise.data.files.formats.dbn import PRICE_UNIT
from statewise.data.files.formats.dbn_writer import write_dbn

ORDER = 5  # rows that the signal is linear in
SESSION_MINUTES = 390  # from 14:30 to 21:00 UTC on weekdays
_SESSION_START = np.timedelta64(14 * 60 + 30, "m")
_FIRST_DAY = np.datetime64("2022-01-03", "D")  # a Monday
_SIGNS = np.array([-1.0, 1.0, -1.0, 1.0, 1.0])  # of kappa: reversal first, as one-minute returns have it
_BURN_IN = 1000  # bars before the first one, until nothing remembers its start
# The log volatility: an autoregression with a half-life of about an hour. Its spread raises the standard error of a
# measured information coefficient above 1 / sqrt(n) by a factor of exp(2 * .15^2) = 1.05, the session's smile by 1.01.
_VOLATILITY_MEMORY, _VOLATILITY_SPREAD = 0.99, 0.15
_VOLUME_MEMORY, _VOLUME_SPREAD = 0.9, 0.4


@dataclass(frozen=True)
class Bars:
    """frame: ts (Datetime in ns), symbol, open, high, low, close, volume, sorted by symbol, then ts.

    expected_return: for each row of the frame the best forecast of its log return (close to close) made one row before;
    NaN where the five returns that it takes cannot all be computed from the frame: the first six rows of each symbol.
    """

    frame: pl.DataFrame
    expected_return: np.ndarray


def market_bars(
    seed: int,
    ic: float,
    bars: int = 200_000,
    instruments: int = 2,
    volatility: float = 5e-4,
) -> Bars:
    """Draws bars of independent instruments that follow the same signal at different levels of price and volatility.

    ic: the information coefficient, from 0 (pure noise) to below 1.
    volatility: the standard deviation of the first instrument's one-minute log return; each further one is a
    fifth more volatile than the one before.
    """
    for name, size in (("bars", bars), ("instruments", instruments)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    if not 0 <= ic < 1:
        raise ValueError(f"ic must be at least 0 and below 1, got {ic}")
    if not volatility > 0:
        raise ValueError(f"volatility must be above 0, got {volatility}")
    weights = signal_weights(ic)
    minutes = _minutes(bars)
    width = max(2, len(str(instruments - 1)))
    frames, forecasts = [], []
    for number, child in enumerate(np.random.SeedSequence(seed).spawn(instruments)):
        frame, expected = _instrument(np.random.default_rng(child), weights, minutes, volatility * 1.2**number)
        symbol = pl.lit(f"SYN{number:0{width}d}").alias("symbol")
        frames.append(frame.select("ts", symbol, "open", "high", "low", "close", "volume"))
        forecasts.append(expected)
    return Bars(pl.concat(frames), np.concatenate(forecasts))


def signal_weights(ic: float) -> np.ndarray:
    """phi_1 .. phi_5 of the autoregression whose best forecast has the correlation `ic` with the next return."""
    kappa = _SIGNS * np.sqrt(1 - (1 - ic**2) ** (1 / ORDER))
    phi = np.zeros(0)
    # Durbin and Levinson: from the partial autocorrelations to the weights, one order after another.
    for k in kappa:
        phi = np.append(phi - k * phi[::-1], k)
    return phi


def bar_features(frame: pl.DataFrame) -> pl.DataFrame:
    """Adds log_return (close to close), log_range (high over low) and log_volume, each symbol by itself.

    The first row of a symbol has no log return: NaN. Rows must be sorted by symbol, then time.
    """
    close = pl.col("close")
    change = (close / close.shift(1).over("symbol")).log()
    return frame.with_columns(
        change.fill_null(float("nan")).alias("log_return"),
        (pl.col("high") / pl.col("low")).log().alias("log_range"),
        pl.col("volume").log1p().alias("log_volume"),
    )


def write_bars(frame: pl.DataFrame, path: Path | str) -> None:
    """Writes bars as .csv, .parquet, .dbn or .dbn.zst, with prices rounded to 1e-9.

    That is the unit of prices in DBN: what is read back from any of these files is the same to the last bit.
    """
    path = Path(path)
    # NumPy divides; polars multiplies by an inverse, whose last bit is another.
    rounded = frame.with_columns(
        pl.Series(name, np.rint(frame[name].to_numpy() * PRICE_UNIT) / PRICE_UNIT) for name in ("open", "high", "low", "close")
    )
    if path.suffix == ".csv":
        rounded.write_csv(path)
    elif path.suffix == ".parquet":
        rounded.write_parquet(path)
    elif path.suffix == ".dbn" or path.name.endswith(".dbn.zst"):
        write_dbn(rounded, path)
    else:
        raise ValueError(f"bars are written to a .csv, .parquet, .dbn or .dbn.zst file, got {path.name}")


def _minutes(bars: int) -> np.ndarray:
    """The start of each bar: whole sessions on weekdays, the last one cut where the bars end."""
    sessions = -(-bars // SESSION_MINUTES)
    days = np.busday_offset(_FIRST_DAY, np.arange(sessions), roll="forward").astype("datetime64[m]")
    offsets = _SESSION_START + np.arange(SESSION_MINUTES).astype("timedelta64[m]")
    stamps: np.ndarray = (days[:, None] + offsets).ravel()[:bars].astype("datetime64[ns]")
    return stamps


def _instrument(
    rng: np.random.Generator, weights: np.ndarray, minutes: np.ndarray, volatility: float
) -> tuple[pl.DataFrame, np.ndarray]:
    bars = len(minutes)
    place = np.arange(bars) % SESSION_MINUTES / SESSION_MINUTES
    smile = 0.15 * (6 * (place - 0.5) ** 2 - 0.5)  # more trading and larger moves at both ends of a session; mean zero
    log_volatility = _autoregression(rng, _VOLATILITY_MEMORY, _VOLATILITY_SPREAD, bars + _BURN_IN)
    log_volatility[_BURN_IN:] += smile
    noise = np.exp(log_volatility) * rng.standard_normal(bars + _BURN_IN)
    returns = lfilter([1.0], np.concatenate([[1.0], -weights]), noise)
    # Scaled by what is expected, not by what was drawn: the level must not depend on the future of the path.
    growth = np.exp(2 * _VOLATILITY_SPREAD**2) * np.mean(np.exp(2 * smile)) / np.prod(1 - _partial(weights) ** 2)
    returns *= volatility / np.sqrt(growth)
    sigma = volatility / np.sqrt(growth) * np.exp(log_volatility[_BURN_IN:])
    # lfilter with a delay of one: the forecast of r_t sees r_(t-1) and older.
    expected = lfilter(np.concatenate([[0.0], weights]), [1.0], returns)[_BURN_IN:]
    returns = returns[_BURN_IN:]

    log_close = np.log(100.0) + np.cumsum(returns)
    # Half of a session's first move happens overnight, between the last close and the open.
    overnight = np.where(place == 0, 0.5, 0.0)
    log_open = log_close - (1 - overnight) * returns
    beyond = 0.5 * sigma * np.abs(rng.standard_normal((2, bars)))
    log_volume = 8.0 + 4 * smile + 2 * (log_volatility[_BURN_IN:] - smile)
    log_volume += _autoregression(rng, _VOLUME_MEMORY, _VOLUME_SPREAD, bars)
    frame = pl.DataFrame(
        {
            "ts": minutes,
            "open": np.exp(log_open),
            "high": np.exp(np.maximum(log_open, log_close) + beyond[0]),
            "low": np.exp(np.minimum(log_open, log_close) - beyond[1]),
            "close": np.exp(log_close),
            "volume": np.ceil(np.exp(log_volume)).astype(np.int64),
        }
    )
    # The return of row 0 is part of the process but, without a close before it, not of the data.
    expected[: ORDER + 1] = np.nan
    return frame, expected


def _autoregression(rng: np.random.Generator, memory: float, spread: float, steps: int) -> np.ndarray:
    """A stationary Gaussian process of order 1 with the standard deviation `spread`."""
    innovations = spread * np.sqrt(1 - memory**2) * rng.standard_normal(steps)
    innovations[0] = spread * rng.standard_normal()
    path: np.ndarray = lfilter([1.0], [1.0, -memory], innovations)
    return path


def _partial(weights: np.ndarray) -> np.ndarray:
    """The partial autocorrelations of an autoregression: Durbin and Levinson, backwards."""
    phi, kappa = weights, []
    while len(phi):
        k = phi[-1]
        kappa.append(k)
        phi = (phi[:-1] + k * phi[-2::-1]) / (1 - k**2) if len(phi) > 1 else phi[:0]
    return np.array(kappa)
