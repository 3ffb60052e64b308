"""Kills at random moments, a very long run, and the page that shows their figures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "bench"
MEASURED = ROOT / "docs" / "measurements"


def script(name, *options, output):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, str(SCRIPTS / name), *options, "-o", str(output)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(output.read_text())


@pytest.mark.slow
def test_kills_lose_at_most_five_seconds_and_spoil_nothing(tmp_path):
    kills = ("--kills", "4", "--lives", "2", "--span", "4")
    options = (*kills, "--outages", "1", "--points", "1000", "--seed", "1", "--dir", str(tmp_path))
    measured = script("chaos.py", *options, output=tmp_path / "chaos.json")
    arrived, found = measured["outages"], measured["kills"]
    assert arrived["produced"] == arrived["delivered"] > 500
    assert arrived["lost"] == arrived["duplicated"] == 0
    assert found["kills"] == 4
    assert found["produced"] > 100
    assert found["worst_loss_seconds"] <= found["bound_seconds"] == 5
    assert found["recorded"] == found["produced"] - found["lost"] + found["unnoted"]
    for key in ("duplicated", "gaps", "unreadable", "not_named"):
        assert found[key] == 0, key


@pytest.mark.slow
def test_interrupts_lose_nothing_and_raise_nothing_else(tmp_path):
    options = ("--kills", "0", "--outages", "0", "--interrupts", "40", "--seed", "1", "--dir", str(tmp_path))
    found = script("chaos.py", *options, output=tmp_path / "chaos.json")["interrupts"]
    assert found["interrupts"] == 40
    assert found["recorded"] == found["taken"] > 20
    assert found["inside"] > 5, "the signals did not come"
    for key in ("lost", "errors", "gradients_off", "left"):
        assert found[key] == 0, key


@pytest.mark.slow
def test_a_long_run_has_constant_memory_and_few_files(tmp_path):
    options = ("--steps", "12000", "--flush-every", "0.02", "--dir", str(tmp_path))
    found = script("bench_long.py", *options, output=tmp_path / "long.json")["long"]
    assert found["flushes"] > 140  # enough for merges
    # Two tables, two levels of merges, some not merged yet. On a busy machine merges come late: not at every moment.
    assert min(found["files"][10:]) < 2 * 2 * (64 + 3) + 10 < 2 * found["flushes"]
    first, *_, last = found["resident_mib"][10:]
    assert last - first < 20


def test_the_page_shows_what_was_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from chaos import interrupt_table, outage_table, table

    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    for name, shown in (("kills", table), ("outages", outage_table), ("interrupts", interrupt_table)):
        measured = json.loads((MEASURED / f"chaos_{name}.json").read_text())
        assert shown(measured[name]) in page, (
            "docs/reliability.md is out of date: scripts/bench/chaos.py prints its tables"
        )
        assert measured["machine"] in page
