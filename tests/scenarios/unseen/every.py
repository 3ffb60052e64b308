"""Importing it makes all the unseen trainings known: `unseen.SICK`, `unseen.HEALTHY`."""

from importlib import import_module
from pathlib import Path

from unseen import UNNAMED

for group in ("first", *UNNAMED):
    for path in sorted((Path(__file__).parent / group).glob("*.py")):
        import_module(f"unseen.{group}.{path.stem}")
