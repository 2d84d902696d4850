"""The pictures show what they claim to show, for odd runs too, and leave nothing behind."""

import math
import re
import sys

import numpy as np
import polars as pl
import pytest

from statewise import figures


def predicted(rows: int = 30, names: tuple[str, ...] = ("x", "y"), horizon: int = 1) -> pl.DataFrame:
    index = np.arange(rows)
    parts = [
        pl.DataFrame(
            {
                "series": ["a"] * (rows - 5) + ["b"] * 5,
                "time": np.datetime64("2024-01-01", "ns") + index * np.timedelta64(3600, "s"),
                "variable": [name] * rows,
                "step": np.full(rows, step, dtype=np.int32),
                "target": np.sin(index / 5) + number,
                "prediction": np.sin(index / 5) + number + 0.1 * step,
                "linear": np.sin(index / 5) + number - 0.1,
            }
        )
        for step in range(1, horizon + 1)
        for number, name in enumerate(names)
    ]
    return pl.concat(parts)


def curves(axes: object) -> dict[str, np.ndarray]:
    return {line.get_label(): np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()}  # type: ignore[attr-defined]


def test_importing_and_drawing_does_not_touch_pyplot() -> None:
    before = "matplotlib.pyplot" in sys.modules
    figures.png(figures.learning_rate(np.arange(3), np.array([0.0, 1e-3, 0.0])), dpi=40)
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_the_losses_are_drawn_at_their_steps_with_the_test_errors_as_levels() -> None:
    metrics = pl.DataFrame({"step": [1, 2, 2, 3], "train/loss": [1.0, 0.5, None, math.inf], "val/mse": [None, None, 0.6, None]})
    figure = figures.losses(metrics, baselines={"linear": 0.3}, test_mse=0.25)
    (axes,) = figure.axes
    drawn = curves(axes)
    np.testing.assert_array_equal(drawn["validation (val/mse)"], [0.6])
    np.testing.assert_array_equal(drawn["_child0"], [1.0, 0.5])
    assert [0.3, 0.3] in [list(values) for values in drawn.values()]
    assert {text.get_text() for text in axes.texts} == {"test: linear 0.3", "test: model 0.25"}


def test_errors_that_span_much_are_drawn_on_a_logarithmic_scale() -> None:
    def scale(values: list[float]) -> str:
        metrics = pl.DataFrame({"step": range(len(values)), "train/loss": values})
        return str(figures.losses(metrics).axes[0].get_yscale())

    assert scale([1.0, 0.9, 0.5]) == "linear"
    assert scale([1.0, 0.1, 0.05]) == "log"
    assert scale([1.0, 0.1, 0.0]) == "linear"


def test_names_of_levels_that_are_close_do_not_overlap() -> None:
    metrics = pl.DataFrame({"step": [0, 1], "train/loss": [1.0, 0.01]})
    figure = figures.losses(metrics, baselines={"a": 0.5, "b": 0.5001, "c": 0.5002}, test_mse=0.5003)
    heights = sorted(text.get_position()[1] for text in figure.axes[0].texts)
    assert np.diff(heights).min() > 0.06


def test_the_means_of_epochs_are_drawn_instead_of_single_batches() -> None:
    epochs = {"train/loss_epoch": [None, 0.4, None, 0.3], "val/mse": [None, 0.35, None, 0.31]}
    metrics = pl.DataFrame({"step": [1, 2, 3, 4], "train/loss": [9.0, 0.01, 5.0, 0.2], **epochs})
    training, validation, _ = figures.losses(metrics, baselines={"linear": 0.33}).axes[0].get_lines()
    assert list(training.get_ydata()) == [0.4, 0.3]
    assert list(validation.get_ydata()) == [0.35, 0.31]


def test_losses_without_any_logged_value_still_give_a_picture() -> None:
    figure = figures.losses(pl.DataFrame({"step": [1], "lr": [0.1]}))
    assert figures.png(figure, dpi=40).startswith(b"\x89PNG")


def test_predictions_show_one_panel_per_target_and_only_the_first_series() -> None:
    figure = figures.predictions(predicted(), rows=1000)
    assert [axes.get_ylabel() for axes in figure.axes] == ["x", "y"]
    drawn = curves(figure.axes[1])
    assert set(drawn) == {"truth", "linear model", "prediction"}
    assert len(drawn["truth"]) == 25
    np.testing.assert_allclose(drawn["prediction"] - drawn["truth"], 0.1)
    np.testing.assert_allclose(drawn["truth"], np.sin(np.arange(25) / 5) + 1)


def test_predictions_of_a_later_step_are_those_of_that_step() -> None:
    figure = figures.predictions(predicted(horizon=3), step=3)
    drawn = curves(figure.axes[0])
    np.testing.assert_allclose(drawn["prediction"] - drawn["truth"], 0.3)
    assert "3 steps ahead" in figure.axes[0].get_title(loc="left")


def test_an_unobserved_truth_is_a_gap() -> None:
    frame = predicted().with_columns(target=pl.when(pl.int_range(pl.len()) == 3).then(None).otherwise("target"))
    truth = curves(figures.predictions(frame).axes[0])["truth"]
    assert np.flatnonzero(np.isnan(truth)).tolist() == [3]


def test_predictions_without_time_or_linear_column_are_drawn_over_rows() -> None:
    frame = predicted().drop("linear").with_columns(time=pl.int_range(pl.len()))
    figure = figures.predictions(frame)
    assert figure.axes[-1].get_xlabel() == "row"
    assert set(curves(figure.axes[0])) == {"truth", "prediction"}


def test_many_targets_are_cut_off_and_the_title_says_so() -> None:
    figure = figures.predictions(predicted(10, tuple(f"v{i}" for i in range(12))))
    assert len(figure.axes) == figures.MAX_TARGETS
    assert "first 8 of 12 targets" in figure.axes[0].get_title(loc="left")


def test_eigenvalues_have_equal_axes_hollow_starts_and_filled_ends() -> None:
    history = [(step, layer, np.array([0.5, -0.5j]) * (1 + step / 10)) for step in range(4) for layer in ("a", "b")]
    figure = figures.eigenvalues(history)
    axes = figure.axes[0]
    drawn = {line.get_label(): line for line in axes.get_lines()}
    assert axes.get_aspect() == 1.0
    assert axes.get_xlim() == axes.get_ylim()
    assert drawn["start"].get_fillstyle() == "none"
    assert drawn["end"].get_fillstyle() == "full"
    np.testing.assert_allclose(drawn["start"].get_xdata(), [0.5, 0.0])
    np.testing.assert_allclose(drawn["end"].get_ydata(), [0.0, -0.65])
    assert "radius 0.500 → 0.650" in axes.get_title(loc="left")


def test_eigenvalues_outside_the_circle_stay_in_the_picture() -> None:
    axes = figures.eigenvalues([(0, "a", np.array([2.0 + 0j])), (1, "a", np.array([0.5 + 0j]))]).axes[0]
    assert axes.get_xlim()[1] > 2.0


def test_a_long_history_of_eigenvalues_is_thinned_but_keeps_both_ends() -> None:
    history = [(step, "a", np.array([step / 1000])) for step in range(1000)]
    lines = figures.eigenvalues(history).axes[0].get_lines()
    assert len(lines) <= figures.MAX_SNAPSHOTS
    assert {float(np.real(line.get_xdata()[0])) for line in lines} >= {0.0, 0.999}


@pytest.mark.parametrize("layers", [0, 1, 5])
def test_any_number_of_layers_is_drawn(layers: int) -> None:
    history = [(step, f"ssm_{i}", np.array([0.1j])) for step in range(2) for i in range(layers)]
    assert figures.png(figures.eigenvalues(history), dpi=40).startswith(b"\x89PNG")


def test_a_narrow_picture_has_its_titles_in_more_lines_and_fewer_panels_side_by_side() -> None:
    history = [(step, f"ssm_{i}", np.array([0.5j])) for step in range(2) for i in range(3)]
    wide, narrow = figures.eigenvalues(history), figures.eigenvalues(history, width=figures.NARROW)
    columns = [figure.axes[0].get_subplotspec().get_gridspec().ncols for figure in (wide, narrow)]
    assert columns == [3, 2]
    assert narrow.axes[0].get_title(loc="left") == "ssm_0:\nradius 0.500 → 0.500"
    drawn = figures.predictions(predicted(), where="validation rows", width=figures.NARROW)
    assert drawn.get_figwidth() == figures.NARROW
    assert drawn.axes[0].get_title(loc="left").count("\n") == 1
    heat = figures.gradient_norms(np.arange(2), ["a"], np.ones((2, 1)), width=figures.NARROW)
    assert heat.get_figwidth() == figures.NARROW


def test_a_palette_makes_a_picture_several_times_smaller_and_leaves_its_size() -> None:
    def encoded(colours: int | None) -> bytes:
        return figures.png(figures.predictions(predicted()), dpi=80, colours=colours)

    full, small = encoded(None), encoded(64)
    assert len(small) < len(full) / 2
    assert small[16:24] == full[16:24]  # width and height


def test_spectral_radii_stand_beside_their_threshold() -> None:
    figure = figures.spectral_radii({"ssm_0": (np.arange(3), np.array([0.9, 0.95, 0.99]))}, threshold=1.0)
    drawn = curves(figure.axes[0])
    np.testing.assert_array_equal(drawn["ssm_0"], [0.9, 0.95, 0.99])
    assert [1.0, 1.0] in [list(values) for values in drawn.values()]
    assert figure.axes[0].get_ylim()[1] > 1.0


def colours_of(figure: object) -> np.ndarray:
    image = figure.axes[0].get_images()[0]  # type: ignore[attr-defined]
    return np.asarray(image.to_rgba(image.get_array()))


def test_a_dead_parameter_and_one_without_gradient_have_colours_of_their_own() -> None:
    matrix = np.array([[1.0, 0.0, np.nan, 0.1], [0.5, 0.0, np.nan, 1e-12]])
    figure = figures.gradient_norms(np.array([1, 2]), ["alive", "zero", "none", "fading"], matrix)
    rgb = colours_of(figure)[..., :3]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["alive", "zero", "none", "fading"]
    pink, grey = (np.array([int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for c in (figures.PINK, figures.NOTHING))
    np.testing.assert_allclose(rgb[1], [pink, pink], atol=1e-6)
    np.testing.assert_allclose(rgb[2], [grey, grey], atol=1e-6)
    for row in (0, 3):
        for colour in (pink, grey):
            assert (np.abs(rgb[row] - colour).max(axis=-1) > 0.05).all()
    assert not np.allclose(rgb[0, 0], rgb[3, 1])
    assert {text.get_text() for text in figure.axes[0].get_legend().get_texts()} == {"exactly zero", "no gradient"}


def test_a_healthy_heat_map_needs_no_legend() -> None:
    figure = figures.gradient_norms(np.array([1, 2]), ["a"], np.array([[1.0], [2.0]]))
    assert figure.axes[0].get_legend() is None


@pytest.mark.parametrize("matrix", [np.zeros((2, 1)), np.full((2, 1), np.nan), np.ones((2, 1)), np.empty((0, 1))])
def test_a_heat_map_of_nothing_but_one_value_is_drawn(matrix: np.ndarray) -> None:
    figure = figures.gradient_norms(np.arange(len(matrix)), ["a"], matrix)
    assert figures.png(figure, dpi=40).startswith(b"\x89PNG")


def test_many_steps_are_binned_by_their_geometric_mean() -> None:
    matrix = np.tile(np.array([[1e-4, 0.0, np.nan], [1.0, 0.0, np.nan]]), (figures.MAX_COLUMNS, 1))
    binned = figures._binned(matrix, figures.MAX_COLUMNS)
    assert binned.shape == (figures.MAX_COLUMNS, 3)
    np.testing.assert_allclose(binned[:, 0], 1e-2)
    np.testing.assert_array_equal(binned[:, 1], 0.0)
    assert np.isnan(binned[:, 2]).all()


def test_names_of_very_many_parameters_stay_readable() -> None:
    names = [f"block_{i}.weight" for i in range(300)]
    figure = figures.gradient_norms(np.arange(2), names, np.ones((2, 300)))
    assert len(figure.axes[0].get_yticklabels()) <= 65


@pytest.mark.parametrize("length", [1, 2, 3, 250])
def test_smoothing_keeps_length_level_and_ends(length: int) -> None:
    values = np.linspace(1.0, 2.0, length)
    np.testing.assert_allclose(figures.smoothed(values), values)


def test_an_svg_takes_its_greys_from_the_page_and_refers_to_nothing_outside() -> None:
    def draw() -> str:
        return figures.svg(figures.learning_rate(np.arange(3), np.array([0.0, 1e-3, 0.0])))

    text = draw()
    assert text.startswith("<svg")
    assert "var(--ink)" in text
    assert figures.INK not in text
    assert "<metadata>" not in text
    outside = [link for link in re.findall(r"""(?:href|src)=["']([^"']+)""", text) if not link.startswith(("#", "data:"))]
    assert outside == []
    assert draw() == text
