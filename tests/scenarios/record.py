"""Trains what the tests of this folder read, and keeps it in `recorded/`.

    python tests/scenarios/record.py [-k ...] [test_file.py ...]

By hand, after a training was changed or added. Without options the folder is emptied first.
"""

import shutil
import sys
from pathlib import Path

import pytest
import recordings

HERE = Path(__file__).parent

if __name__ == "__main__":
    recordings.RECORDING = True
    if not sys.argv[1:]:
        shutil.rmtree(recordings.FOLDER, ignore_errors=True)
    unread = ["--ignore", str(HERE / "test_recordings.py")]
    where = [] if any(word.endswith(".py") for word in sys.argv[1:]) else [str(HERE)]
    sys.exit(pytest.main([*where, "-m", "not slow", *unread, *sys.argv[1:]]))
