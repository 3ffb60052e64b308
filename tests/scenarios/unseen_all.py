"""Importing it makes all the unseen trainings known: `unseen.SICK`, `unseen.HEALTHY`."""

from importlib import import_module
from pathlib import Path

from unseen import UNNAMED

for path in sorted(Path(__file__).parent.glob("*_*.py")):
    if path.stem.partition("_")[0] in ("unseen", *UNNAMED) and path.stem != "unseen_all":
        import_module(path.stem)
