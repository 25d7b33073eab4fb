"""The pages of a real run and of a real sweep, opened in a browser. Screenshots are left in runs/screenshots."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict
from playwright.sync_api import Browser, Page, sync_playwright
from starts import QUICKLY

from configs import arrays
from fedss_jax.train import train

ROOT = Path(__file__).parent.parent
SCREENSHOTS = ROOT / "runs" / "screenshots"
BROWSERS = (os.environ.get("CHROMIUM", "chromium"), "chromium-browser", "google-chrome")
NASTY = ["<script>window.taken = 1</script>", "</script><img src=x onerror='window.taken = 1'>", '$a_1$ & "b"']
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


def write_pictures(path: Path) -> None:
    """Small pictures of 18 classes, each of its own colour and shape; some of the names are attacks."""
    rng = np.random.default_rng(0)
    names = np.array([*NASTY, *(f"class {i}" for i in range(3, 18))])
    labels = np.repeat(np.arange(len(names)), 12)
    patterns = rng.integers(40, 216, (len(names), 16, 16, 3))
    images = np.clip(patterns[labels] + rng.normal(0, 30, (len(labels), 16, 16, 3)), 0, 255).astype(np.uint8)
    np.savez(path, images=images, labels=names[labels])


def small(config: ConfigDict, data: Path) -> ConfigDict:
    config.rounds, config.clients_per_round, config.num_negatives, config.eval.every = 6, 2, 4, 2
    config.model.options = ConfigDict({"layers": ((8, 4, 4),), "groups": 2})
    config.model.dim, config.eval.batch_size = 8, 64
    config.data.train, config.data.test_share, config.data.labels_per_client = str(data), 0.34, 3
    return config


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished run, whose classes have names that must not be taken for HTML."""
    folder = tmp_path_factory.mktemp("run")
    write_pictures(folder / "data.npz")
    train(small(arrays.get_config("images"), folder / "data.npz"), str(folder / "run"))
    return folder / "run" / "report.html"


CONFIG = """
from configs import arrays
from pathlib import Path
from test_report import small

def get_config():
    return small(arrays.get_config("images,retrieval"), Path(__file__).with_name("data.npz"))

def sweep(add):
    add(method="fedss", num_negatives=4, seed=0)
    add(method="fedss", num_negatives=6, seed=0)
    add(method="negonly", num_negatives=4, seed=0)
    add(method="negonly", num_negatives=4, extra_negatives=True, seed=0)
    add(method="fullsoftmax", seed=0)
    add(method="fedss", num_negatives=1000, seed=0)
"""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """A sweep that was killed after its first run and started again, and of which one cell cannot run."""
    folder = tmp_path_factory.mktemp("sweep")
    write_pictures(folder / "data.npz")
    (folder / "config.py").write_text(CONFIG)
    command = [sys.executable, "launch.py", "--mode=sweep", f"--config={folder}/config.py", f"--workdir={folder}/runs"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = os.environ | {"XLA_FLAGS": QUICKLY, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    options: dict = dict(cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen(command, start_new_session=True, **options)
    first = folder / "runs" / "method=fedss,num_negatives=4,seed=0" / "summary.json"
    deadline = time.monotonic() + 600
    while not first.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    said = process.communicate()
    assert first.exists(), said
    kept = first.stat().st_mtime_ns
    done = subprocess.run([*command, "--jobs=2"], timeout=900, **options)
    assert done.returncode != 0 and "1 of 6 runs failed" in done.stderr, done.stderr
    assert "1 of 6 runs are done already" in done.stdout and first.stat().st_mtime_ns == kept
    return folder / "runs" / "report.html"


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.fail("no browser to open pages with: apt-get install chromium, or set CHROMIUM to one", pytrace=False)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


class Opened:
    """A page that notes what must not happen."""

    def __init__(self, browser: Browser, path: Path, size: str = "desktop", scheme: str = "light"):
        width, height = SIZES[size]
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=1
        )
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(dialog.message))
        self.page.on(
            "request", lambda r: self.wrong.append(r.url) if not r.url.startswith(("file:", "data:")) else None
        )
        self.page.on("requestfailed", lambda request: self.wrong.append(f"{request.url[:80]} failed"))
        self.page.goto(path.as_uri())

    def __enter__(self) -> Page:
        return self.page

    def __exit__(self, kind, *_) -> None:
        self.context.close()
        if kind is None:
            assert self.wrong == []


@pytest.mark.parametrize("which", ["run", "sweep"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_pages_render_on_any_screen(which, scheme, size, browser, request):
    path = request.getfixturevalue(which)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with Opened(browser, path, size, scheme) as page:
        page.screenshot(path=SCREENSHOTS / f"{which}-{size}-{scheme}.png", full_page=True)
        assert page.locator("figure svg").count() >= 4
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it is wider than the screen"
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (colour == "rgb(255, 255, 255)") == (scheme == "light")
        assert not any(word in page.inner_text("main") for word in ("undefined", "NaN", "None"))
        for link in page.locator("nav a").all():
            assert page.locator(f"section{link.get_attribute('href')}").count() == 1
    assert path.stat().st_size < 3_000_000
    assert not any(word in path.read_text() for word in ('http-equiv="refresh', "<iframe", "cdn."))


def test_the_gallery_shows_and_finds(run, browser):
    with Opened(browser, run) as page:
        rows = page.locator("#queries .query")
        assert rows.count() == 8 and "random queries" in page.locator("#count").inner_text()
        assert rows.first.locator(".shown").count() == 1 + 10
        page.get_by_role("button", name="worst", exact=True).click()
        worst = rows.first.locator(".shown.right").count()
        page.get_by_role("button", name="best", exact=True).click()
        assert "best queries" in page.locator("#count").inner_text()
        assert rows.first.locator(".shown.right").count() > worst
        page.locator("#more").click()
        assert rows.count() == 16
        marks = {mark.inner_text() for mark in page.locator("#queries .mark").all()}
        assert marks == {"✓", "✗"}  # right and wrong are told without colours
        page.locator("#search").fill("CLASS 7")
        names = page.locator("#queries .about b").all_inner_texts()
        assert names and set(names) == {"class 7"}
        found = page.locator("#classmap .found").evaluate_all("all => all.map((each) => each.dataset.name)")
        assert found == ["class 7"]
        page.locator("#search").fill("0.")  # a score is not a name
        assert page.locator("#classmap .found").count() == 0
        page.locator("#search").fill("no such class")
        assert rows.count() == 0 and "no queries" in page.locator("#count").inner_text()


def test_names_from_data_stay_text(run, browser):
    with Opened(browser, run) as page:
        for name in NASTY:
            page.locator("#search").fill(name)
            assert set(page.locator("#queries .about b").all_inner_texts()) == {name}
        labels = page.locator("#classmap .class").evaluate_all("all => all.map((each) => each.dataset.tip)")
        assert all(any(label.startswith(name) for label in labels) for name in NASTY)
        page.mouse.move(5, 5)
        page.locator("#search").fill("<script")
        page.locator("#queries .shown").first.hover()
        assert page.locator("#tip").inner_text() == NASTY[0]
        assert page.evaluate("window.taken") is None and page.locator("main img").count() == 0


def test_toggles_and_schemes(run, browser):
    with Opened(browser, run) as page:
        figure = page.locator("#curves figure")
        line = figure.locator('[data-series="0"]').first
        button = figure.locator("[data-toggle='0']")
        assert line.is_visible() and button.get_attribute("aria-pressed") == "true"
        button.click()
        assert not line.is_visible() and button.get_attribute("aria-pressed") == "false"
        assert figure.locator('[data-series="1"]').first.is_visible()
        button.click()
        assert line.is_visible()
        figure.locator('[data-series="0"] use').last.hover(force=True)
        assert "at round 6" in page.locator("#tip").inner_text()
        page.get_by_role("button", name="dots").click()
        assert not page.locator("#classmap .picture").first.is_visible()
        assert page.locator("#classmap .dot").first.is_visible()
        before = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.locator("#scheme").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_a_run_says_how_it_was_made(run, browser):
    summary = json.loads(run.with_name("summary.json").read_text())
    with Opened(browser, run) as page:
        headline = page.locator(".tile.big")
        assert f"{summary['final']['eval/top1']:.3f}" in headline.inner_text()
        assert f"{summary['start']['eval/top1']:.3f} before training" in headline.inner_text()
        assert page.locator(".command code").inner_text() == summary["command"]
        page.get_by_text("Configuration").click()
        assert (
            page.locator("tr", has=page.get_by_text("client.learning_rate", exact=True)).locator("td").inner_text()
            == "0.05"
        )


def test_a_sweep_compares_its_runs_and_names_what_failed(sweep, browser):
    with Opened(browser, sweep) as page:
        table = page.locator("#scores tbody tr")
        assert table.locator("th").all_inner_texts() == [
            "before training",
            "FedSS, m = 4",
            "FedSS, m = 6",
            "NegOnly, m = 4",
            "NegOnly, m = 4, |P_k| − 1 more",
            "FullSoftmax",
            "FedSS, m = 1000",
        ]
        failed = page.locator("#failed tbody tr")
        assert failed.count() == 1 and "lower num_negatives" in failed.inner_text()
        for part in ("curves", "sizes", "parameters", "negatives", "overfitting", "confusion", "traffic"):
            count = 2 if part == "confusion" else 1
            assert page.locator(f"#{part} svg").count() == count, part
            assert len([*(sweep.parent / "figures").glob(f"{part}*.svg")]) == count, part
        curves = page.locator("#curves figure")
        assert curves.locator("[data-toggle]").all_inner_texts() == ["FedSS, m = 6", "NegOnly, m = 4", "FullSoftmax"]
        links = page.locator("#runs a")
        assert links.count() == 5
        links.first.click()
        assert page.locator("h1").inner_text() == "FedSS on arrays"
    assert (sweep.parent / "table.md").read_text().count("\n") == 2 + 7


def test_pages_can_be_made_again_without_jax(run, sweep):
    program = (
        "import sys; from fedss_jax.report.__main__ import main; main(sys.argv[1:]); assert 'jax' not in sys.modules"
    )
    for page in (run, sweep):
        before = page.read_text()
        page.unlink()
        if page == sweep:  # a run may have been killed just before it made its own
            (page.parent / "method=fullsoftmax,seed=0" / "report.html").unlink()
        subprocess.run(
            [sys.executable, "-c", program, str(page.parent)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )
        assert page.read_text() == before
    assert (sweep.parent / "method=fullsoftmax,seed=0" / "report.html").stat().st_size > 50_000
