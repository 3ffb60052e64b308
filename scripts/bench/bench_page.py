"""How soon the report of a large run is on the screen: its words, its first chart, its last one.

Writes a run of `--layers` x `--steps` (as `bench_store.py` does), makes its report, and opens that from a file in
Chromium, headless, `--rounds` times, each in a browser window of its own that nothing is cached for. Counted from the
start of the navigation, in seconds on the clock, medians and the range:

- `words`: the first paint with content (First Contentful Paint): title, verdict, findings.
- `first_chart`: the first frame after a chart was drawn.
- `screen`: all charts of the first screen (1280 x 800) are drawn.
- `all_charts`: in a window as high as the page, every chart that no tab hides.

It needs Chromium on the PATH, and playwright.

    python scripts/bench/bench_page.py [--layers 1000] [--steps 2000] [--rounds 5] [-o FILE]
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_output import arguments, cpu_name, publish
from bench_store import write_run
from playwright.sync_api import Browser, sync_playwright

from gradwatch import __version__

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
DRAWN = ".plot .xaxislayer-above"
# At each frame: how many charts there are, and since when.
WATCHED = f"""window.seen = [];
(function look() {{
    const charts = document.querySelectorAll("{DRAWN}").length;
    if (charts !== (seen.at(-1)?.charts ?? 0)) seen.push({{ charts, at: performance.now() }});
    requestAnimationFrame(look);
}})()"""
WANTED = """height => [...document.querySelectorAll(".plot")].every(div => div.querySelector(".xaxislayer-above")
    || div.closest("[hidden], details:not([open])") || div.getBoundingClientRect().top > height)"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def opened(browser: Browser, page: Path, height: int) -> dict[str, float]:
    """Seconds until the words, the first chart and all charts in a window of that height are there."""
    tab = browser.new_context(viewport={"width": 1280, "height": height}).new_page()
    tab.add_init_script(WATCHED)
    tab.goto(page.as_uri())
    tab.wait_for_function(WANTED, arg=height, timeout=0)
    tab.wait_for_timeout(100)  # for the frame that shows it
    seen = tab.evaluate("window.seen")
    found = {"words": tab.evaluate(PAINT), "first_chart": seen[0]["at"], "charts": seen[-1]["at"]}
    tab.context.close()
    return {name: value / 1000 for name, value in found.items()}


def times(page: Path, rounds: int) -> dict[str, list[float]]:
    """Each moment, of every round."""
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser_path is None:
        raise SystemExit("found no chromium, chromium-browser or google-chrome on the PATH; one is wanted")
    found: dict[str, list[float]] = {name: [] for name in ("words", "first_chart", "screen", "all_charts")}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=FLAGS)
        for _ in range(rounds):
            screen = opened(browser, page, 800)
            found["words"].append(screen["words"])
            found["first_chart"].append(screen["first_chart"])
            found["screen"].append(screen["charts"])
            found["all_charts"].append(opened(browser, page, 8000)["charts"])
        browser.close()
    return found


def summary(values: list[float]) -> dict[str, Any]:
    return {"median": round(statistics.median(values), 2), "range": [round(min(values), 2), round(max(values), 2)]}


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, _ = write_run(Path(temporary), args.layers, args.steps, 10)
        page = Path(temporary) / "report.html"
        subprocess.run([sys.executable, "-m", "gradwatch", "report", str(folder), "-o", str(page)],
                       check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        load, megabytes = os.getloadavg()[0], page.stat().st_size / 1e6
        found = times(page, args.rounds)
    report = {
        "what": "the report of a large run in headless Chromium: seconds from the start of the navigation",
        "machine": cpu_name(), "load": round(load, 1), "gradwatch": __version__, "rounds": args.rounds,
        "layers": args.layers, "steps": args.steps, "page_mb": round(megabytes, 2),
        "seconds": {name: summary(values) for name, values in found.items()},
    }  # fmt: skip
    publish(report, args.output)


if __name__ == "__main__":
    main()
