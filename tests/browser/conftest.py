"""Pages are opened in a headless Chromium, as Debian packages it; nothing is downloaded."""

import base64
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root in a container has none
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
PHONE = 600  # narrower is one
# The whole text of a page, that inside of components too.
TEXT = """
const read = node => [...(node.shadowRoot ? [node.shadowRoot] : []), ...node.childNodes].map(child =>
  child.nodeType === 3 ? child.textContent
  : ['STYLE', 'SCRIPT', 'TEMPLATE'].includes(child.tagName) ? '' : read(child)).join('\\n');
return read(document.body);
"""


class Browser:
    """One Chromium: opens a page at a width, and says what became of it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str, width: int = 1400, height: int = 1000, *, dark: bool = False) -> None:
        # The window itself has a minimum width, wider than a phone.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get("about:blank")
        self.log("browser")
        self.log("performance")
        self.driver.get(address)

    def log(self, kind: str) -> list[dict[str, Any]]:
        """What was logged since it was last asked for."""
        return list(self.driver.get_log(kind))

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.log("browser") if entry["level"] == "SEVERE"]

    def requests(self) -> list[str]:
        """Every address that was asked for; what lies inside the page itself is none."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        sent = (event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent")
        return [address for address in sent if not address.startswith("data:")]

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def text(self) -> str:
        return str(self.run(TEXT))

    def wait_for(self, *words: str, seconds: float = 60) -> str:
        """The text of the page once it holds all the words, which stand in it as texts of their own."""
        until = time.monotonic() + seconds
        while True:
            text = self.text()
            missing = set(words) - {line.strip() for line in text.splitlines()}
            if not missing:
                return text
            assert time.monotonic() < until, f"the page does not show {sorted(missing)}, but: {' '.join(text.split())[:3000]}"
            time.sleep(0.3)

    def picture(self) -> bytes:
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])

    def pdf(self) -> bytes:
        """The page on A4, as a person prints it."""
        paper = {"paperWidth": 8.27, "paperHeight": 11.69}
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.printToPDF", paper)["data"])


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        required = os.environ.get("STATEWISE_BROWSER") == "required" or os.environ.get("CI")
        (pytest.fail if required else pytest.skip)("no Chromium here: apt-get install chromium chromium-driver")
    os.environ["SE_OFFLINE"] = "true"
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    started.set_page_load_timeout(60)
    yield Browser(started)
    started.quit()


TINY = (
    "data=lti",
    "data.steps=400",
    "data.window=16",
    "data.batch_size=64",
    "model.d_model=4",
    "model.d_state=4",
    "model.n_layers=1",
    "scheduler.warmup_steps=2",
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=1",
)


@pytest.fixture(scope="session")
def fit() -> Callable[..., int]:
    """A run of about a second in a folder, with events and, where asked for, a report; returns the exit code."""

    def run(folder: Path, *overrides: str) -> int:
        from statewise.train import main

        return main([*TINY, f"hydra.run.dir={folder}", *overrides])

    return run
