"""Makes the pictures of the README from the runs of a demo: `docs/images/report.png` and `docs/images/run.png`.

    scripts/demo
    python scripts/bench/make_pictures.py [gradwatch-demo]

Needs playwright and a Chromium on the PATH.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from gradwatch.report import build_report, render_html
from gradwatch.storage.run_reader import read_run

IMAGES = Path(__file__).parents[2] / "docs" / "images"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
WIDTH = 1200
DRAWN = """() => [...document.querySelectorAll(".plot")].every(
    div => div.closest("[hidden], details:not([open])") || div.querySelector(".xaxislayer-above"))"""


def main(demo: Path) -> None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sys.exit("playwright is not installed: pip install playwright")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no Chromium on the PATH")
    comparison = demo / "report-rnn.html"
    dying = sorted(demo.glob("runs/sweep-lr2-mlp-*/none-seed0-*/*/run.json"), key=lambda path: path.parent.name)
    if not comparison.exists() or not dying:
        sys.exit(f"{demo} holds no finished demo: run scripts/demo first")

    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        one = Path(folder) / "run.html"
        one.write_text(render_html(build_report([read_run(dying[-1].parent)])), encoding="utf-8")
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        # (page, picture, the chart it ends with)
        for page_file, name, last in ((comparison, "report.png", 3), (one, "run.png", 1)):
            page = browser.new_page(viewport={"width": WIDTH, "height": 3000})
            page.goto(page_file.resolve().as_uri())
            page.wait_for_function(DRAWN)
            box = page.locator(".card:has(.plot):not(.card .card)").nth(last).bounding_box()
            bottom = box["y"] + box["height"] + 8
            page.screenshot(path=IMAGES / name, clip={"x": 0, "y": 0, "width": WIDTH, "height": bottom})
            print(f"{name}: {(IMAGES / name).stat().st_size // 1000} kB")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "gradwatch-demo"))
