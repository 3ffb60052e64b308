"""Runs everything that needs a GPU, a section after the other, in at most 9 minutes; `scripts/bench/gpu` starts it.

    scripts/bench/gpu -o gpu.json                   # on one CUDA device
    scripts/bench/gpu --tiny -o gpu.json            # its branches without a GPU, on small models
    scripts/bench/gpu --only machine,probes         # some sections

Each section is a process with a time-out of its own; an error in one is a line in the JSON, and the next goes on. The
JSON is written anew after each, so a run that is ended has what it had. The exit code is 0 where everything ran and
every bar was held, 1 where not, 2 where there is no CUDA device or no torch.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_output import arguments

ROOT = Path(__file__).parents[2]
SECONDS = 520  # of the whole run
LIMITS = {  # of a section, which is given what is left where that is less
    "machine": 40, "probes": 70, "gpt2-124m": 150, "tests": 120, "host": 75, "small": 60, "switches": 60, "drains": 30,
    "memory": 30, "gpt-1b": 90, "scenarios": 120,
}  # fmt: skip
NEEDED = ("torch", "numpy", "pandas", "pyarrow", "filelock", "pytest")  # plotly, MLflow and the rest may be missing
TAIL = 1500  # characters of what a section that failed had printed
Report = dict[str, Any]


def main() -> int:
    args = _arguments()
    began, report = time.monotonic(), {"tiny": args.tiny, "sections": {}}
    names = [name for name in args.only.split(",") if name] or list(LIMITS)
    unknown = [name for name in names if name not in LIMITS]
    if unknown:
        print(f"--only: no {', '.join(unknown)}; there are {', '.join(LIMITS)}", file=sys.stderr)
        return 2
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{sys.executable} has no {', '.join(missing)}: name one that has in $PYTHON", file=sys.stderr)
        return 2
    if not args.tiny and not _has_cuda():
        print("torch sees no CUDA device here: --tiny runs the branches that need none", file=sys.stderr)
        return 2
    for name in names:
        left = args.seconds - (time.monotonic() - began)
        report["sections"][name] = run_section(name, min(LIMITS[name], left), args.tiny)
        report["seconds"] = round(time.monotonic() - began, 1)
        report["bars"] = bars(report["sections"])
        report["failures"] = failures(report)
        if args.output:
            args.output.write_text(json.dumps(report, indent=1) + "\n")
        print(json.dumps({name: report["sections"][name]}), flush=True)
    print(summary(report))
    return int(bool(report["failures"]))


def _arguments() -> Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--tiny", action="store_true", help="small models, on the CPU where there is no CUDA device")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of the whole run, {SECONDS} by default")
    parser.add_argument("--only", default="", help=f"some of {', '.join(LIMITS)}, with commas between them")
    return parser.parse_args()


def _has_cuda() -> bool:
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


# ------------------------------------------------------------------------------------------------------------ sections


def run_section(name: str, limit: float, tiny: bool) -> Report:
    """What the parts of a section found, by name; `error` where it did not come to its end."""
    if limit < 5:
        return {"parts": {}, "error": "no time was left for it"}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = (run_tests if name == "tests" else run_parts)(name, limit, tiny, Path(folder))
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def run_parts(name: str, limit: float, tiny: bool, folder: Path) -> Report:
    """A section of gpu_sections.py, or gpu_scenarios.py: a line of its file is a part."""
    lines = folder / "parts.jsonl"
    if name == "scenarios":
        script = [
            "gpu_scenarios.py",
            *(["--names", "twin, sick: nonfinite"] if tiny else ["--seconds", f"{limit - 15:.0f}"]),
        ]
    else:
        script = ["gpu_sections.py", name, *(["--tiny"] if tiny else [])]
    command = [sys.executable, str(Path(__file__).with_name(script[0])), *script[1:]]
    error = run_process([*command, "-o", str(lines)], limit, folder)
    parts: Report = {}
    for line in read_lines(lines):
        parts |= line
    return {"parts": parts, "error": error}


def run_tests(name: str, limit: float, tiny: bool, folder: Path) -> Report:
    """The tests marked `gpu`, the slow ones too: of each file how many passed, failed, were skipped, what failed."""
    files = gpu_tests()[: 1 if tiny else None]
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "gpu_tests_log"]
    if importlib.util.find_spec("xdist") and not tiny:
        command += ["-n", str(min(12, os.cpu_count() or 1)), "--dist", "load"]
    if importlib.util.find_spec("pytest_timeout"):
        command += ["--timeout=100"]
    log = folder / "tests.jsonl"
    error = run_process([*command, "-m", "gpu", *map(str, files)], limit, folder, GPU_TESTS_LOG=str(log))
    outcomes = {line["test"]: line for line in read_lines(log)}  # the last of a test counts
    parts = {str(file.relative_to(ROOT)): _of_file(file, outcomes.values(), tiny) for file in files}
    failed = any(part["failed tests"] for part in parts.values())
    return {"parts": parts, "error": None if failed else error}


def _of_file(file: Path, outcomes: Iterable[Report], tiny: bool) -> Report:
    own = [line for line in outcomes if line["test"].startswith(f"{file.relative_to(ROOT)}::")]
    counts = Counter(line["outcome"] for line in own)
    failed = {line["test"]: line["why"] for line in own if line["outcome"] == "failed"}
    held = not failed and (tiny or counts["passed"] > 0 or not own)  # none where a framework is not installed
    return {**counts, "held": held, "failed tests": failed}


def gpu_tests() -> list[Path]:
    """The files with tests that need a GPU."""
    texts = {p: p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py")}
    return sorted(p for p, text in texts.items() if "mark.gpu" in text or "from devices import" in text)


def run_process(command: Sequence[str], limit: float, folder: Path, **env: str) -> str | None:
    """Run it, `limit` seconds at most, with all that it starts; what went wrong, or None."""
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env={**os.environ, **env}, start_new_session=True
        )
        try:
            process.wait(limit)
            what = f"it ended with {process.returncode}" if process.returncode else None
        except subprocess.TimeoutExpired:
            what = f"it was not done after {limit:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return what and f"{what}: {log.read_text(errors='replace')[-TAIL:]}"


def read_lines(path: Path) -> list[Report]:
    """The JSON objects of a file of lines; one that was cut off is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


# ------------------------------------------------------------------------------------------------------------ judgement

TO_TORCH, TO_BARE, TOKENS = 0.92, 1.005, 20_000
OURS, RECORDING = "gradwatch clip + step", "gradwatch no clip + step"


def bars(sections: Mapping[str, Report]) -> list[Report]:
    """What was promised of GPT-2 124M in fp32 with a fused optimizer, and what was found; only of a whole model."""
    parts = sections.get("gpt2-124m", {}).get("parts", {})
    found = []
    for figures in parts.values():
        if figures.get("parameters", 0) > 1e8:
            if "phase" in figures:
                what = f"clip + everything, to torch's clip + step, at most {TO_TORCH}"
                found.append((what, figures["phase"][OURS], TO_TORCH))
            tokens = figures["batch"][0] * figures["batch"][1]
            if tokens >= TOKENS:
                what = f"a watched step of {tokens:,} tokens without a policy, to a bare one, at most {TO_BARE}"
                found.append((what, figures["to bare"][RECORDING], TO_BARE))
    return [{"what": what, "found": value, "held": value <= most} for what, value, most in found]


def failures(report: Report) -> list[str]:
    """What did not run, was found wrong, or missed its bar: a line each."""
    found = []
    for name, section in report["sections"].items():
        if section["error"]:
            found.append(f"{name}: {section['error'].splitlines()[0]}")
        for part, result in section["parts"].items():
            if result.get("error") or result.get("held") is False:
                found.append(f"{name}, {part}: {(result.get('error') or 'not as it should be').splitlines()[0]}")
            found += [f"{test}: {why}" for test, why in result.get("failed tests", {}).items()]
    return found + [f"{bar['what']}: {bar['found']:.4f}" for bar in report["bars"] if not bar["held"]]


def summary(report: Report) -> str:
    """What to read first; printed last."""
    lines = [f"{name}: {s.get('seconds', 0)} s" for name, s in report["sections"].items()]
    lines += [f"{bar['what']}: {bar['found']:.4f} {'held' if bar['held'] else 'MISSED'}" for bar in report["bars"]]
    count = len(report["failures"])
    return "\n".join([*lines, *report["failures"][:40], f"{count or 'no'} failure{'s' * (count != 1)}"])


if __name__ == "__main__":
    sys.exit(main())
