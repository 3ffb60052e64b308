"""Where address space is limited (`ulimit -v`), Arrow reserves none and starts no thread: it would end the process."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from make_run import make_run

import gradwatch
from gradwatch import open_run
from gradwatch.cli import main

resource = pytest.importorskip("resource")

NO_ROOM = "libarrow.so.2500: failed to map segment from shared object"


@pytest.mark.parametrize("text", [NO_ROOM, "libarrow.so: cannot open shared object file"])
def test_a_library_that_finds_no_room_is_said_and_another_failure_is_left_alone(text, tmp_path, monkeypatch):
    folder, no_room = make_run(tmp_path, steps=3), text == NO_ROOM
    error = gradwatch.RunError if no_room else ImportError

    def fail(*_, **__):
        raise ImportError(text)

    with monkeypatch.context() as patched:
        patched.setattr(gradwatch, "import_module", fail)
        with pytest.raises(error, match="libarrow"):
            gradwatch.__getattr__("open_history")
    monkeypatch.setattr(open_run, "_opened", fail)
    with pytest.raises(error, match="libarrow"):
        open_run.open_history(folder)
    done = CliRunner().invoke(main, ["show", str(folder)])
    assert done.exit_code == (2 if no_room else 1)
    if no_room:
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"Error: there is not enough memory to load a library ({text}): raise the limit")


CODE = """
import os, resource, sys
from pathlib import Path
if sys.argv[2] == "limited":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, resource.RLIM_INFINITY))  # no limit in truth
from gradwatch.storage.run_reader import read_run
import pyarrow
def size():
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") >> 20
before, threads = size(), len(os.listdir("/proc/self/task"))
assert len(read_run(Path(sys.argv[1]))) == 300
print(pyarrow.default_memory_pool().backend_name == "system", size() - before > 800,
      len(os.listdir("/proc/self/task")) > threads)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="looks into /proc")
def test_arrow_takes_little_where_little_is_to_be_had(tmp_path):
    folder = make_run(tmp_path, steps=300)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ARROW_")}
    said = {}
    for how in ("limited", "free"):
        words = [sys.executable, "-c", CODE, str(folder), how]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
        said[how] = done.stdout.split()
    assert said["limited"] == ["True", "False", "False"]
    assert said["free"][0] == "False"
