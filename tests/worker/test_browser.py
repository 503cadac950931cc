"""The status page in a browser: a real worker, a live job, hostile names, and what axe-core says of it."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import feeder
from feeder.records import Dataset

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-playwright-python here")
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here")

DEADLINE_S = 30.0
DEADLINE_MS = 1000 * DEADLINE_S
HOSTILE = "<img src=x onerror=\"document.title='taken'\">&amp;"
SIZES = {"phone": (360, 740), "desktop": (1160, 900)}


def _browser_path() -> str:
    wanted = os.environ.get("FEEDER_BROWSER")
    path = shutil.which(wanted or "chromium")
    if path is None and wanted:
        pytest.fail(f"FEEDER_BROWSER is {wanted!r}, and there is no such program")
    if path is None:
        pytest.skip("no Chromium here: make system-tests, or name one with FEEDER_BROWSER")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = _browser_path()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def address_of(worker: Any) -> str:
    (found,) = (match[1] for line in worker.log if (match := re.search(r"health at (\S+)", line)))
    return found


@pytest.fixture(scope="module")
def url(
    browser: Any,
    shards: Path,
    start_shared_worker: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """Of the page of a worker, which serves a job that takes batches all the time."""
    folder = tmp_path_factory.mktemp("hostile")
    shutil.copy(shards / "bad" / "part-00000-of-00001", folder / HOSTILE)
    Dataset.open("hostile", [str(folder)]).close()
    worker = start_shared_worker(f"--dataset=hostile={folder}", "--http", "127.0.0.1:0")
    runs, stop = threading.Event(), threading.Event()

    def consume() -> None:
        with feeder.connect(worker.address) as client:
            for _ in client.stream("hostile", batch_size=8, image_size=32, job=HOSTILE):
                runs.set()
                if stop.wait(0.02):
                    return

    job = threading.Thread(target=consume)
    job.start()
    try:
        assert runs.wait(DEADLINE_S)
        yield address_of(worker)
    finally:
        stop.set()
        job.join(DEADLINE_S)


OpenPage = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, url: str) -> Iterator[OpenPage]:
    """Opens the page; whatever it complains of fails the test."""
    pages, complaints = [], []

    def open_(**settings: Any) -> Any:
        width, height = SIZES["desktop"]
        page = browser.new_page(viewport={"width": width, "height": height}, **settings)
        pages.append(page)
        page.set_default_timeout(DEADLINE_MS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        page.goto(url)
        return page

    yield open_
    for page in pages:
        page.close()
    assert not complaints


def number(page: Any, selector: str) -> int:
    return int(re.sub(r"\D", "", page.inner_text(selector)) or 0)


def test_it_shows_a_live_job(open_page: OpenPage) -> None:
    page = open_page()
    page.wait_for_selector("#state.serving")
    page.wait_for_selector(".job")
    before = number(page, "#uptime")
    page.wait_for_function(
        "before => Number(document.querySelector('#uptime').textContent.replace(/\\D/g, '')) > before",
        arg=before,
    )
    page.wait_for_function("parseInt(document.querySelector('#images-now').textContent) > 0")
    assert "hostile" in page.inner_text(".job h3")
    assert "limit" in page.inner_text("#sentence")
    assert page.locator("#stages tr").count() == 5
    assert "now" in (page.get_attribute("#images-chart svg", "aria-label") or "")
    report = page.locator(".consumers tbody tr").inner_text()
    assert "0 of 1" in report


def test_names_from_outside_stay_text(open_page: OpenPage) -> None:
    page = open_page()
    page.wait_for_selector("#bad td")
    assert HOSTILE in page.inner_text(".job h3")
    assert HOSTILE in page.inner_text("#bad")
    assert HOSTILE in page.inner_text("#stream")
    assert page.title().endswith(", feeder worker")
    assert page.locator("main img").count() == 0


def test_pictures_of_the_newest_batch_come_when_asked_for(open_page: OpenPage) -> None:
    page = open_page()
    page.wait_for_selector("#stream option", state="attached")
    assert page.locator(".picture").count() == 0
    page.keyboard.press("Tab")  # the keyboard alone gets there
    page.focus("#show")
    page.keyboard.press("Enter")
    page.wait_for_selector(".picture")
    assert page.locator(".picture").count() == 8
    whole = "(one) => one.complete && one.naturalWidth === 32"
    page.wait_for_function(f"[...document.querySelectorAll('.picture img')].every({whole})")
    assert "pixels; the crop is" in (page.locator(".picture svg").first.get_attribute("aria-label") or "")


def test_axe_finds_nothing_dark_or_light_wide_or_narrow(open_page: OpenPage) -> None:
    page = open_page(reduced_motion="reduce")
    page.wait_for_selector("#bad td")
    page.wait_for_selector(".job")
    for width, height in SIZES.values():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            found = axe.Axe().run(page)
            assert not found.response["violations"], (width, scheme, found.generate_report())
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_facts_need_no_script(open_page: OpenPage) -> None:
    page = open_page(java_script_enabled=False)
    assert "native" in page.inner_text(".facts") or "portable" in page.inner_text(".facts")
    assert "hostile" in page.inner_text("[aria-labelledby=sets]")
    assert page.locator("#sentence").is_visible() is False


def test_figures_of_a_worker_that_is_gone_do_not_look_alive(
    browser: Any, start_worker: Callable[..., Any]
) -> None:
    worker = start_worker("--http", "127.0.0.1:0")
    page = browser.new_page()
    try:
        page.goto(address_of(worker))
        page.wait_for_selector("#state.serving", timeout=DEADLINE_MS)
        assert page.evaluate("getComputedStyle(document.querySelector('#limit')).opacity") == "1"
        worker.kill()
        page.wait_for_selector("#state.lost", timeout=DEADLINE_MS)
        assert "its last" in page.inner_text("#uptime")
        assert float(page.evaluate("getComputedStyle(document.querySelector('#limit')).opacity")) < 1
    finally:
        page.close()
