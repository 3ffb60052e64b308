"""Runs scripts of ranks, each rank a fork of one process that has imported torch: to import it takes longer than a
small test trains, once for each rank that `torchrun` starts and once for itself.

    python ranks_forked.py < commands, one a line, as JSON: how many ranks, a free port, the script and its words, the
    folder that they run in, their environment, and the files for what they print

As `torchrun` does, it ends the others when a rank fails. It prints the exit codes of all as a line of JSON.
"""

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import time

import torch

LONGEST = 200.0  # seconds until ranks that hang are killed
PATIENCE = 30.0  # seconds from SIGTERM to SIGKILL, as torchrun has it


def rank(number, size, port, words, place, environment, stdout, stderr):
    """Become one of the ranks, to the end of its script."""
    for name, stream in ((os.devnull, 0), (stdout, 1), (stderr, 2)):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND), stream)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(place)
    os.environ.clear()
    os.environ.update(
        environment | {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(size)},
        LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    sys.argv = words
    sys.path[0] = os.path.dirname(words[0])
    runpy.run_path(words[0], run_name="__main__")


def codes(pids):
    """How the ranks ended: when one fails the others are told to, and are killed when they do not."""
    ended, is_told, deadline = {}, False, time.monotonic() + LONGEST
    while len(ended) < len(pids):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            ended[pid] = os.waitstatus_to_exitcode(status)
        elif not is_told and any(ended.values()):
            is_told, deadline = True, time.monotonic() + PATIENCE
            _signal(set(pids) - set(ended), signal.SIGTERM)
        elif time.monotonic() > deadline:
            _signal(set(pids) - set(ended), signal.SIGKILL)
        time.sleep(0 if pid else 0.02)
    return [ended[pid] for pid in pids]


def _signal(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # torch imports its compiler with the first optimizer
    for module in (
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
        "torch.distributed.optim",
        "gradwatch",
    ):
        importlib.import_module(module)
    gc.freeze()  # else every fork walks through, and so copies, all of torch as its interpreter ends
    for line in sys.stdin:
        size, *how = json.loads(line)
        pids = []
        for number in range(size):
            pids.append(os.fork())
            if pids[-1] == 0:
                rank(number, size, *how)
                sys.exit()
        print(json.dumps(codes(pids)), flush=True)
