"""Trainings of two ranks of which one ends badly, with gradwatch and without it: how does the other end?

    ranks_that_end.py FOLDER [PATTERN]

The ranks are forked, so that torch is imported once. A launcher waits for both; where one hangs, it sends SIGTERM after
a while, and SIGKILL later, as torchrun and Slurm do. What came of each training goes to `FOLDER/ends.json`.
"""

import atexit
import datetime
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import data, mesh, net, shard_all, tensor_parallel
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwatch

STEPS, AT = 24, 16  # after 16 steps ranks with halt_on ask each other
STUCK, TERM, KILL = 60.0, 1.5, 8.0  # seconds: a rank that never ends; a hang until SIGTERM, and from there to SIGKILL
KINDS = {
    "ddp": DistributedDataParallel,
    "fsdp2": lambda model: shard_all(model, mesh(2)),
    "tensor-parallel": lambda model: tensor_parallel(model, mesh(2)),
}
BARE = ("bare", "bare clip")  # the second by torch's clip_grad_norm_, which has a collective for spread gradients
WATCHED = {"watched": {}, "clip": {"clip": "ClipByGlobalNorm(0.1)"}, "halt_on": {"halt_on": "error"}}
PLACES = ["in forward", "before the step", "in a later hook", "before the last step", "before close"]


def fail():
    raise RuntimeError("this rank ends here")


HOW = {
    "exits": lambda: os._exit(7),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hangs": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raises": fail,
}


def train(folder, kind, watched, how, place, bad):
    """One rank; every step that it has taken is noted in a file of its own."""
    rank = dist.get_rank()
    model = KINDS[kind](net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
    if watched not in BARE:
        settings = {"every": 2, "dir": folder / "runs", "log": None, "verbose": False, "flush_every": 60.0}
        watch = gradwatch.watch(model, optimizer, **settings, **WATCHED[watched])
    step = 0
    last = {"before the last step": (STEPS - 1, "before the step"), "before close": (STEPS, "before close")}

    def pass_by(where):
        if rank == bad and (step, where) == last.get(place, (AT, place)):
            HOW[how]()

    optimizer.register_step_pre_hook(lambda *_: pass_by("in a later hook"))
    batches = [batch for _ in range(STEPS // 6) for batch in data()]
    with open(folder / f"steps{rank}", "w", buffering=1) as taken:
        for step, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            pass_by("in forward")
            nn.functional.cross_entropy(model(x), y).backward()
            pass_by("before the step")
            if watched == "bare clip":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            taken.write(f"{step}\n")
    step = STEPS
    pass_by("before close")
    if watched not in BARE:
        watch.close()


def fork(rank, folder, *case):
    """Start a rank; it ends as a script does."""
    pid = os.fork()
    if pid:
        return pid
    code = 0
    error = os.open(folder / f"stderr{rank}", os.O_CREAT | os.O_WRONLY)
    os.dup2(error, 2)
    try:
        dist.init_process_group(
            "gloo", f"file://{folder}/store", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=20)
        )
        train(folder, *case)
    except BaseException as raised:
        traceback.print_exc()
        sys.last_value, code = raised, 1
    threading._shutdown()
    atexit._run_exitfuncs()
    os._exit(code)


def outcome(folder, kind, watched, how, place, bad):
    """Run a training; say how the rank that is not `bad` ended, after how many seconds, and what is recorded."""
    folder.mkdir()
    pids = [fork(rank, folder, kind, watched, how, place, bad) for rank in (0, 1)]
    ends, since, termed = {}, None, None
    begun = time.monotonic()
    while len(ends) < 2 and time.monotonic() - begun < STUCK:
        for rank, pid in enumerate(pids):
            if rank not in ends:
                found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
                if found and os.WIFSTOPPED(status):
                    since = since or time.monotonic()
                elif found:
                    ends[rank] = os.waitstatus_to_exitcode(status), time.monotonic()
                    since = since or time.monotonic()
        if how == "hangs" and since is not None:
            if 1 - bad in ends:
                break
            if termed is None and time.monotonic() > since + TERM:
                termed = time.monotonic()
                os.kill(pids[1 - bad], signal.SIGTERM)
            elif termed is not None and time.monotonic() > termed + KILL:
                os.kill(pids[1 - bad], signal.SIGKILL)
        time.sleep(0.01)
    for rank, pid in enumerate(pids):
        if rank not in ends:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    code, ended = ends.get(1 - bad, ("never", time.monotonic()))
    taken = [len((folder / f"steps{rank}").read_text().split()) for rank in (0, 1)]
    said = (folder / f"stderr{1 - bad}").read_text().strip().splitlines()
    case = {"kind": kind, "watched": watched, "how": how, "place": place, "bad": bad}
    end = {"code": code, "seconds": round(ended - (since or begun), 2), "taken": taken, "said": said}
    if watched not in BARE:
        (run,) = (folder / "runs").iterdir()
        try:
            history = gradwatch.open_history(run)
            end |= {"recorded": len(history), "status": history.run.status, "problems": list(history.problems)}
        except gradwatch.GradwatchError as error:
            end |= {"recorded": 0, "status": str(error), "problems": []}
    return case | end


def cases():
    for how in HOW:
        for place in PLACES:
            for kind in KINDS:
                for watched in (*BARE, *WATCHED):
                    for bad in (1, 0):
                        if bad or how == "raises":
                            yield kind, watched, how, place, bad


def main(folder, pattern=""):
    ends = []
    for i, case in enumerate(cases()):
        if re.search(pattern, ", ".join(map(str, case))):
            ends.append(outcome(folder / str(i), *case))
            print({k: v[-1][-120:] if k == "said" and v else v for k, v in ends[-1].items()}, flush=True)
    (folder / "ends.json").write_text(json.dumps(ends))


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["TORCH_DISABLE_ADDR2LINE"] = "1"
    main(Path(sys.argv[1]), *sys.argv[2:])
