"""Takes the screenshots of docs/status-page.md, for `make screenshots`: a worker serves made pictures."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import feeder
from feeder.records.synth import synth

DOCS = Path(__file__).resolve().parent
RUN_S = 60.0
"""For how long the jobs run before pictures are taken, so that the charts have something to show."""

SHOTS = (
    ("status-page.png", 1160, "light", 2500),
    ("status-page-top.png", 1160, "light", 800),
    ("status-page-phone.png", 360, "dark", 1600),
)
"""Name, width, scheme and most height, in pixels."""


def main() -> None:
    """Starts a worker over pictures, of which one is damaged, and takes the screenshots of its page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        synth(folder / "photos", images=400, classes=8)
        damaged = sorted((folder / "photos").rglob("*.JPEG"))[20]
        damaged.write_bytes(damaged.read_bytes()[:5000])
        command = [sys.executable, "-m", "feeder", "worker", f"--dataset=photos={folder / 'photos'}"]
        command += [
            "--listen=127.0.0.1:0",
            "--http=127.0.0.1:0",
            "--seek=off",
            f"--cache-dir={folder / 'cache'}",
        ]
        log = folder / "log"
        with log.open("w") as stderr:
            worker = subprocess.Popen(
                [*command, "--cache-bytes=100MB"], stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        try:
            assert worker.stdout is not None
            address = worker.stdout.readline().split()[-1]
            url = re.findall(r"http://\S+", log.read_text())[0]
            take(address, url)
        finally:
            worker.terminate()
            worker.wait()


def take(address: str, url: str) -> None:
    """Runs two jobs for a while, then takes the screenshots."""
    stop = threading.Event()
    jobs = [
        threading.Thread(target=consume, args=(stop, address, 0.15, "resnet50-baseline", index, 2))
        for index in range(2)
    ]
    jobs.append(threading.Thread(target=consume, args=(stop, address, 0.4, "alexnet-sweep-3", 0, 1)))
    for job in jobs:
        job.start()
    try:
        stop.wait(RUN_S)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(
                executable_path=shutil.which(os.environ.get("FEEDER_BROWSER", "chromium")),
                args=["--no-sandbox"],
            )
            for shot in SHOTS:
                shoot(browser, url, *shot)
            browser.close()
    finally:
        stop.set()
        for job in jobs:
            job.join()


def consume(stop: threading.Event, address: str, step_s: float, job: str, index: int, count: int) -> None:
    """Takes batches as a trainer would whose steps take so long."""
    settings: dict[str, Any] = (
        {"image_size": 160, "seed": 3} if count == 1 else {"transport": ("auto", "grpc")[index]}
    )
    with feeder.connect(address) as client:
        stream = client.stream(
            "photos", batch_size=48 // count, consumer_index=index, consumer_count=count, job=job, **settings
        )
        for _ in stream:
            if stop.wait(step_s):
                return


def shoot(browser: Browser, url: str, name: str, width: int, scheme: Any, height: int) -> None:
    """Takes one, with pictures of the newest batch."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(url)
    page.wait_for_selector(".job")
    page.click("#show")
    page.wait_for_selector(".picture")
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    page.wait_for_timeout(3000)
    image = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    page.close()
    image = image.crop((0, 0, width, min(height, image.height))).convert("RGB")
    _small(image).save(DOCS / name, optimize=True)


def _small(image: Image.Image) -> Image.Image:
    """In 256 colours, among them those that are seen most, exactly: areas of the page keep theirs."""
    most = sorted(image.getcolors(image.width * image.height) or [])[-16:]
    colours = (image.quantize(240).getpalette() or [])[: 240 * 3]
    palette = Image.new("P", (1, 1))
    palette.putpalette(colours + [value for _, colour in most for value in colour])
    return image.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)


if __name__ == "__main__":
    main()
