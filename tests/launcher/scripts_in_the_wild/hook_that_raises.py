"""Its own `sys.excepthook` fails while it handles an error of its own."""

import sys


def hook(*_):
    try:
        {}["missing"]
    except KeyError:
        raise ValueError("in the hook") from None


sys.excepthook = hook
raise RuntimeError("in the script")
