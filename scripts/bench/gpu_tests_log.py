"""A plugin of pytest's: writes the outcome of each test as it ends to $GPU_TESTS_LOG, so that a time-out loses none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def pytest_runtest_logreport(report: Any) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return  # the controller is told of all
    crash = getattr(report.longrepr, "reprcrash", None)
    why = str(crash.message if crash else report.longrepr).strip() if report.failed else ""
    line = {"test": report.nodeid, "outcome": report.outcome, "why": why[:300]}
    with Path(os.environ["GPU_TESTS_LOG"]).open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")
