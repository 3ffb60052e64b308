"""What every measuring script takes and gives, without torch: its arguments, the machine's name, the result as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STARTING_LOAD = round(os.getloadavg()[0], 1)  # of the machine, before a bench adds its own


def arguments(description: str | None, rounds: int | None = None) -> argparse.ArgumentParser:
    """A parser with what all of them understand; `--rounds` where there are any."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("-o", "--output", type=Path, help="write the JSON there too")
    return parser


def cpu_name() -> str:
    """The processor and its cores, as the kernel names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def publish(report: Mapping[str, Any], output: Path | None) -> None:
    """Print the result, and write it to `output` if that is given."""
    print(json.dumps(report, indent=1))
    write(report, output)


def write(report: Mapping[str, Any], output: Path | None) -> None:
    """Write the result, or what of it is there so far, to `output` if that is given."""
    if output:
        output.write_text(json.dumps(report, indent=1) + "\n")
