"""Starts scripts of ranks as `torchrun` does, and opens what they recorded."""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock
from mlflow_server import free_port

from gradwatch import open_history

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"


@functools.cache
def _forks():
    """The process whose forks are ranks, the same for all tests."""
    command, piped = [sys.executable, SUPPORT / "ranks_forked.py"], subprocess.PIPE
    process = subprocess.Popen(command, stdin=piped, stdout=piped, text=True, env=_environment())
    atexit.register(process.communicate)
    return process


def _environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(SUPPORT)])}


def torchrun(size, *command, cwd=None, **environment):
    """`size` processes that run a script, as `torchrun` starts them, but of what they import."""
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("stdout", "stderr")]
        words = [str(word) for word in command]
        order = [size, free_port(), words, str(cwd or Path.cwd()), _environment() | environment, *map(str, said)]
        print(json.dumps(order), file=_forks().stdin, flush=True)
        codes = json.loads(_forks().stdout.readline())
        out, err = (path.read_text() for path in said)
    ends = [f"rank {rank} ended with {code}\n" for rank, code in enumerate(codes) if code]
    return subprocess.CompletedProcess(words, int(bool(ends)), out, "".join([err, *ends]))


def launched_once(tmp_path_factory, worker_id, name, size, script, *arguments, **environment):
    """The folder, its last argument, in which the ranks of a script left what they saw.

    pytest's own workers share it: the first that asks runs them.
    """
    root = tmp_path_factory.getbasetemp()
    folder = (root if worker_id == "master" else root.parent) / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            done = torchrun(size, SUPPORT / script, *arguments, folder, **environment)
            (folder / "said").write_text(f"{done.returncode}\n{done.stderr}")
        said = (folder / "said").read_text()
        assert said.startswith("0\n"), said[-3000:]
    return folder


def recorded(tmp_path_factory, size, script, *kinds):
    """What was recorded of each kind of training that a script has (`gloo.each_kind`); one start of the ranks for all.

    Of a kind that gradwatch refuses: what it said.
    """
    folder = tmp_path_factory.mktemp(f"{Path(script).stem}-{size}")
    done = torchrun(size, SUPPORT / script, *kinds, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    refused = {path.stem: path.read_text() for path in folder.glob("*.refused")}
    assert not [path for kind in refused for path in (folder / kind).rglob("*.parquet")]
    return refused | {kind: open_history(*(folder / kind).iterdir()) for kind in kinds if kind not in refused}
