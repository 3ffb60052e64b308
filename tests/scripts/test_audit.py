"""scripts/audit fails for a known vulnerability that an upgrade mends, and for nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def report(*fixes):
    holes = [{"id": f"PYSEC-{i}", "fix_versions": fix} for i, fix in enumerate(fixes)]
    return json.dumps(
        {"dependencies": [{"name": "a", "version": "1", "vulns": holes}, {"name": "b", "skip_reason": ""}]}
    )


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (report(), 0, "no known vulnerability"), (report([]), 0, "no release mends it yet"),
        (report([], ["2.0"]), 1, "a 1: PYSEC-1, fixed in 2.0"), ("", 0, "not looked for"), ("{}", 0, "not looked for"),
    ],
)  # fmt: skip
def test_only_what_an_upgrade_mends_fails(text, code, said):
    result = subprocess.run(
        [sys.executable, ROOT / "scripts/audited.py"], input=text, capture_output=True, text=True, check=False
    )
    assert result.returncode == code
    assert said in result.stderr


@pytest.mark.slow
def test_without_a_network_it_says_so_in_one_line_and_passes():
    env = {**os.environ, "PYTHON": sys.executable, "HTTPS_PROXY": "http://127.0.0.1:9"}
    result = subprocess.run([ROOT / "scripts/audit"], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0
    (line,) = result.stderr.splitlines()
    assert line == "pip-audit: the advisory service did not answer: known vulnerabilities were not looked for"
