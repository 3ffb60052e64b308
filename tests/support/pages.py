"""What a report page holds, taken out of it again; and a run whose every name is hostile."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
from make_run import make_history

from gradwatch.history import Layer


def figures(page):
    return json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)[1])


def titles(page):
    return re.findall(r"<h3>(.*?)</h3>", page)


def unpack(packed):
    values = np.frombuffer(base64.b64decode(packed["bdata"]), "<" + packed["dtype"])
    return values.reshape([int(n) for n in packed["shape"].split(",")]) if "shape" in packed else values


def hostile_history():
    layers = (HOSTILE, "$\\frac{$", "\x1b[31m| *bold* [red]", "<b>b</b>")
    logged = ("loss", f"acc {HOSTILE}")
    history = make_history(layers=layers, logged=logged, name=HOSTILE, clip=HOSTILE, params={"seed": HOSTILE})
    return replace(history, run=replace(history.run, layers=tuple(Layer(n, (2,)) for n in history.layers)))


HOSTILE = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=1">'
