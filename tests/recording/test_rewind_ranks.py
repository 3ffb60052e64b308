"""`Rewind` over two ranks: all go back together, also where one alone saw why."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gradwatch import open_history

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32" or not torch.distributed.is_available(), reason="needs gloo"),
]
ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"


def test_two_ranks_go_back_together_and_resume_together(tmp_path):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(SUPPORT)])}
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*start, str(SUPPORT / "ranks_rewind.py"), str(tmp_path)],
        env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    for rank in (0, 1):
        seen = torch.load(tmp_path / f"rank-{rank}.pt")
        assert seen == {name: {"equal": [True, True], "count": 1} for name in ("ddp", "fsdp2")}
    for name in ("ddp", "fsdp2"):
        (run,) = (tmp_path / name).iterdir()
        history = open_history(run)
        assert np.nansum(history.total("rewound_for")) == 37
        assert np.nansum(history.total("rewound_to")) == 35
        assert history.step[np.isfinite(history.total("rewound_to"))] == [39]  # before the snapshot of step 40
