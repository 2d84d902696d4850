"""report.html of a run and of a sweep, opened from a file path as people open it: wide, on a phone, and on paper."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MOST_BYTES = 2_000_000


@pytest.fixture(scope="session")
def sweep(fit: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, one of them diverged, with the page that compares them."""
    from statewise.sweeps.comparison import write_comparison

    folder = tmp_path_factory.mktemp("outputs") / "sweep"
    assert fit(folder / "0") == 0
    assert fit(folder / "1", "seed=1", "report=false") == 0
    assert fit(folder / "2", "optimizer.lr=1e9", "report=false") == 1
    assert write_comparison(folder) == folder / "report.html"
    return folder


@pytest.fixture(params=["of a run", "of a sweep"])
def report(request: pytest.FixtureRequest, sweep: Path) -> Path:
    return (sweep / "0" if request.param == "of a run" else sweep) / "report.html"


@pytest.mark.parametrize("width", [1400, 400])
def test_a_report_fits_its_window_and_needs_no_network(browser: Any, report: Path, width: int) -> None:
    browser.open(report.as_uri(), width)
    assert browser.run("return innerWidth") == width
    assert browser.run("return document.scrollingElement.scrollWidth") <= width
    assert browser.errors() == []
    assert set(browser.requests()) == {report.as_uri()}
    assert browser.run("return [...document.images].every(image => image.complete && image.naturalWidth > 0)")
    sizes = browser.run("return [...document.querySelectorAll('figure svg')].map(svg => svg.getBoundingClientRect().width)")
    assert sizes
    assert min(sizes) > 250


@pytest.mark.parametrize("width", [1400, 400])
def test_nothing_of_a_report_is_cut_off(browser: Any, report: Path, width: int) -> None:
    """What is wider than its place scrolls inside of it: every text can be brought into view."""
    browser.open(report.as_uri(), width)
    lost = """
    const scrolls = node => ['auto', 'scroll'].includes(getComputedStyle(node).overflowX);
    const within = node => { for (let up = node; up; up = up.parentElement) if (scrolls(up)) return true; return false; };
    return [...document.querySelectorAll('h1, h2, p, td, th, figcaption, svg')].filter(node =>
      node.getBoundingClientRect().right > innerWidth + 1 && !within(node)).map(node => node.outerHTML.slice(0, 80));
    """
    assert browser.run(lost) == []


def test_letters_are_large_enough_on_a_phone(browser: Any, report: Path) -> None:
    browser.open(report.as_uri(), 400)
    sizes = "return [...document.querySelectorAll('p, td, th, figcaption')].map(n => parseFloat(getComputedStyle(n).fontSize))"
    assert min(browser.run(sizes)) >= 13


def test_a_dark_screen_gets_a_dark_page_and_paper_a_white_one(browser: Any, report: Path) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    ink = "return getComputedStyle(document.body).color"
    browser.open(report.as_uri(), dark=True)
    assert browser.run(ground) == "rgb(18, 23, 28)"
    assert browser.run(ink) == "rgb(230, 234, 238)"
    dark = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    assert browser.run(ink) == "rgb(31, 41, 51)"
    assert browser.run(ground) == "rgba(0, 0, 0, 0)"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_a_report_prints_on_a_few_pages(browser: Any, report: Path) -> None:
    browser.open(report.as_uri())
    paper = browser.pdf()
    assert paper.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 8


def test_a_report_is_light(report: Path) -> None:
    assert report.stat().st_size < MOST_BYTES


def test_the_report_of_a_sweep_leads_to_the_reports_of_its_runs(browser: Any, sweep: Path) -> None:
    browser.open((sweep / "report.html").as_uri())
    links = browser.run("return [...document.querySelectorAll('a')].map(link => link.href)")
    assert (sweep / "0" / "report.html").as_uri() in links
