"""The page that compares runs: in one file, without the network, small, and with a way to each run."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from statewise.sweeps import comparison_figures as figures
from statewise.sweeps.compared import pictures, varied_keys
from statewise.sweeps.comparison import write_comparison, write_page
from statewise.sweeps.rows import rows_of

CURVE = [0.9, 0.5, 0.4, 0.35]


class Parts(HTMLParser):
    """Tags, links and text of a page; what refers to anything outside it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.outside: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if tag == "a" and name == "href":
                self.links.append(value)
            elif name in {"src", "href", "xlink:href"} and value and not value.startswith("#"):
                self.outside.append(value)

    def handle_data(self, data):
        if self.lasttag != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def sweep(tmp_path, run_folder):
    """Two models by two rates, one diverged; the first two have reports of their own."""
    (tmp_path / "multirun.yaml").touch()
    number = 0
    for model in ("gru", "nlinear"):
        for rate in ("0.001", "0.1"):
            diverged = (model, rate) == ("nlinear", "0.1")
            val = 0.2 + 0.1 * number
            figures_of_it = {"mse": None, "val": None} if diverged else {"mse": val, "val": val}
            run_folder(
                tmp_path / str(number),
                [f"model={model}", f"optimizer.lr={rate}", "data=lti"],
                model=model,
                curve=[v * val for v in CURVE],
                status="diverged" if diverged else "ok",
                error="the loss is <nan>" if diverged else None,
                health={"verdict": "warning", "findings": [{"id": "lr", "severity": "warning", "message": "m"}]},
                **figures_of_it,
            )
            number += 1
    for done in (0, 1):
        (tmp_path / str(done) / "report.html").write_text("its own")
    return tmp_path


def test_the_page_shows_every_run_and_links_to_its_report(sweep):
    assert write_comparison(sweep) == sweep / "report.html"
    page = Parts((sweep / "report.html").read_text(encoding="utf-8"))

    assert page.links == ["0/report.html", "1/report.html"]
    assert page.text.startswith(
        "4 runs: gru and nlinear on lti 4 runs: gru and nlinear on lti 3 ok 1 diverged Best val/mse: 0.20000 with"
    )
    assert (
        "with model=gru optimizer.lr=0.001; test MSE 0.20000, 75.00 % below the best baseline (linear, 0.80000)." in page.text
    )
    assert "run model optimizer.lr status val/mse test MSE test MAE skill health seconds ★ 0 gru 0.001 ok 0.20000" in page.text
    assert "run status reason 3 diverged the loss is <nan>" in page.text
    assert "severity finding runs which warning lr 4 0, 1, 2, 3" in page.text
    assert "nan" not in page.text.replace("<nan>", "")


def test_the_page_is_whole_and_small(sweep):
    text = write_comparison(sweep).read_text(encoding="utf-8")
    page = Parts(text)

    assert page.outside == []
    assert not re.search(r"@import|url\((?!#)|https?://(?!www\.w3\.org)", text)
    assert "script" not in page.tags
    assert 'name="viewport"' in text
    assert "@media print" in text
    assert page.tags.count("svg") == 5  # training, validation, test errors, and the objective over two keys
    assert len(text) < 300_000


def test_hundreds_of_runs_stay_below_two_megabytes(tmp_path, run_folder):
    curve = list(np.linspace(1.0, 0.1, 400))
    for number in range(200):
        overrides = [f"seed={number}", f"optimizer.lr={1e-4 * 1.03**number:.3g}"]
        run_folder(
            tmp_path / str(number),
            overrides,
            curve=[v * (1 + number / 200) for v in curve],
            mse=0.1 + number / 100,
            val=0.1 + number,
        )
    page = write_comparison(tmp_path)

    assert page.stat().st_size < 2_000_000
    assert "linear-gradient" in page.read_text(encoding="utf-8"), "a scale of colours where there are too many to name"


def test_a_page_elsewhere_links_relative_to_itself(sweep, tmp_path):
    write_page(rows_of(sweep), tmp_path / "pages" / "all.html")

    assert Parts((tmp_path / "pages" / "all.html").read_text(encoding="utf-8")).links == [
        "../0/report.html",
        "../1/report.html",
    ]


def test_the_report_of_a_run_is_never_overwritten(sweep):
    assert write_comparison(sweep / "0") is None
    with pytest.raises(ValueError, match=r"0/report.html is the report of a run; give the page another name$"):
        write_page(rows_of(sweep), sweep / "0" / "report.html")
    assert (sweep / "0" / "report.html").read_text() == "its own"


def test_runs_on_other_data_are_drawn_apart(tmp_path, run_folder):
    for name, data in (("a", "lti"), ("b", "lti"), ("c", "market"), ("d", "market")):
        run_folder(tmp_path / name, [f"data={data}", f"seed={name}"], mse=0.1, val=0.1, curve=CURVE, data=data)
    text = Parts(write_comparison(tmp_path).read_text(encoding="utf-8")).text

    assert "Curves and errors: lti" in text
    assert "Curves and errors: market" in text
    assert "Best val/mse on lti: 0.10000 with" in text


def test_a_sweep_over_folds_has_their_mean(tmp_path, run_folder):
    for fold, mse in enumerate((0.4, 0.5, 0.6)):
        run_folder(tmp_path / str(fold), [f"data.fold={fold}"], mse=mse, val=mse)
    text = Parts(write_comparison(tmp_path).read_text(encoding="utf-8")).text

    assert "Over the folds" in text
    assert "all 3 of 3 0.50000 ± 0.05774" in text
    assert "★" not in text.partition("runs that ended ok.")[2], "no fold is better than another"


@pytest.mark.parametrize("status", ["failed", None])
def test_a_sweep_without_any_result_still_has_a_page(tmp_path, run_folder, status):
    for number in range(2):
        run_folder(tmp_path / str(number), [f"seed={number}"], status=status)
    text = Parts(write_comparison(tmp_path).read_text(encoding="utf-8")).text

    assert "No run ended ok." in text
    assert f"2 {status or 'unfinished'}" in text


def test_what_varies_is_found_in_the_order_typed_and_the_seed_is_drawn_only_alone(sweep, tmp_path, run_folder):
    assert varied_keys(rows_of(sweep)) == ["model", "optimizer.lr"]
    names = [name for name, *_ in pictures(rows_of(sweep), "val/mse")]
    assert names == ["train_loss", "val_mse", "test_errors", "over_model", "over_optimizer.lr"]
    for number in range(3):
        run_folder(tmp_path / "seeds" / str(number), [f"seed={number}"], mse=0.1, val=0.1 + number)
    assert [name for name, *_ in pictures(rows_of(tmp_path / "seeds"), "val/mse")] == ["test_errors", "over_seed"]


def test_thinned_curves_keep_their_ends_and_their_peaks():
    values = np.sin(np.arange(5000.0))
    values[1234], values[4321] = 9.0, -9.0
    kept = figures._thinned(values, 100)

    assert len(kept) <= 102
    assert {0, 1234, 4321, 4999} <= set(kept.tolist())
    assert np.array_equal(figures._thinned(values[:50], 100), np.arange(50))


def test_a_run_that_ended_ok_far_above_the_others_is_named_and_not_drawn(tmp_path, run_folder):
    for number, mse in enumerate([0.1, 0.2, 0.3, 3e101]):
        run_folder(tmp_path / str(number), [f"optimizer.lr={10**-number}"], mse=mse, val=mse, curve=[1.0, mse])
    text = Parts(write_comparison(tmp_path).read_text(encoding="utf-8")).text

    assert "Far to the right of all this: 3: lr=0.001." in text
    assert "Dashed and grey: a run that did not end well, or far above the others." in text
    assert "3.000e+101" in text


def test_the_axis_fits_what_ended_well():
    good = figures.Curve(np.arange(3), np.array([0.5, 0.4, 0.3]), "#2a78d6", best=True)
    lost = figures.Curve(np.arange(3), np.array([1.0, 1e6, 1e12]), "", ok=False)
    low, high = figures.curves("loss", [good, lost]).axes[0].get_ylim()

    assert 0.2 < low < 0.3
    assert 0.5 < high < 0.6


def test_a_rate_far_away_that_gave_nothing_leaves_the_others_their_room():
    points = [figures.Point(1e-3, 0.3), figures.Point(1e-2, 0.2), figures.Point(1e9, None)]
    axes = figures.against("optimizer.lr", points, "val/mse").axes[0]

    assert axes.get_xlim()[1] < 1.0
    assert any(text.get_text() == "1e+09 →" for text in axes.texts)


@pytest.mark.parametrize(
    "points",
    [
        [figures.Point("gru", 0.2), figures.Point("nlinear", None)],
        [figures.Point(1.0, None), figures.Point(2.0, None)],
        [figures.Point(float(x), 0.1 * x + 0.1, f"{x % 9}") for x in range(40)],
        [figures.Point(8.0, 0.2, "a"), figures.Point(8.0, 0.3, "a"), figures.Point(8.0, -0.1, "b")],
    ],
)
def test_whatever_varied_can_be_drawn(points):
    from statewise.figures import svg

    assert svg(figures.against("key", points, "val/mse", "other")).startswith("<svg")
