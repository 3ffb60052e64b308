"""Where the scripts in the wild are, and the environment that `gradwatch run` starts them in."""

import os
from pathlib import Path

import gradwatch
from gradwatch.storage.shared_folder import run_folders

ROOT = Path(__file__).parents[2]
SUPPORT, SCRIPTS = ROOT / "tests" / "support", ROOT / "tests" / "launcher" / "scripts_in_the_wild"


def environment():
    places = [str(ROOT), str(ROOT / "tests"), str(SUPPORT), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, places))  # an empty one would be the working directory
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def one(folder):
    (path,) = run_folders(folder / "gradwatch-runs")
    return gradwatch.open_history(path)
