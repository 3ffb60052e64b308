"""`python -m gradwatch`: the command line."""

import sys
from pathlib import Path

if not getattr(sys.flags, "safe_path", False):  # Python put the working directory first, whose click.py is not ours
    sys.path[0] = str(Path(__file__).parents[1])

from gradwatch.cli import main

main(prog_name="gradwatch")
