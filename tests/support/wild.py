"""Runs scripts one after the other, each in a fork of one process that has imported torch: plainly, with an oracle that
looks at every optimizer's steps, or through `gradwatch run`.

    python wild.py oracle|gradwatch FOLDER < commands, one a line, as JSON

A command is its words, and the folder and the environment that it runs in; where there are none, it runs in its own
`FOLDER/<number>`. That folder then holds stdout, stderr, exit code, and what was seen, and its number is printed.
"""

import faulthandler
import gc
import importlib
import json
import os
import pickle
import runpy
import sys
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from truth import oracle


class Oracle:
    """Per optimizer, in the order of their first steps: each step's norms, and the loss that was backpropagated."""

    def __init__(self):
        self.rows, self.loss, self.scaler, self.inside = {}, 0.0, None, False
        register_optimizer_step_pre_hook(self.before)
        register_optimizer_step_post_hook(self.after)
        self.backward, self.step = torch.Tensor.backward, torch.amp.GradScaler.step
        torch.Tensor.backward = lambda *args, **kwargs: self.on_backward(*args, **kwargs)  # noqa: PLW0108
        torch.amp.GradScaler.step = lambda *args: self.on_scaler(*args)  # noqa: PLW0108

    def on_backward(self, loss, *args, **kwargs):
        if not args and loss.numel() == 1 and not self.inside:
            self.loss += loss.item()
        return self.backward(loss, *args, **kwargs)

    def on_scaler(self, scaler, optimizer):
        self.see(optimizer, scaler.get_scale())
        self.scaler = scaler
        out = self.step(scaler, optimizer)
        self.scaler = None
        return out

    def see(self, optimizer, scale=1.0):
        params = [p for g in optimizer.param_groups for p in g["params"]]
        norms = oracle.norms(oracle.copy(params, scale))
        self.rows.setdefault(optimizer, []).append((norms, self.loss / scale))
        self.loss = 0.0

    def before(self, optimizer, args, kwargs):
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):  # a loss is none
            if self.scaler is None:
                self.see(optimizer)
            return None

        def evaluate():
            out = closure()
            if not self.inside:
                self.inside = True
                self.see(optimizer)
            return out

        return (args[0], evaluate), {}

    def after(self, optimizer, args, kwargs):
        self.inside = False


def child(how, folder, words, place=None, environment=None):
    for name, number in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    faulthandler.dump_traceback_later(60, exit=True)  # a script that hangs is one failure, not a test run that hangs
    os.chdir(place or folder)
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    if how == "gradwatch":
        from gradwatch.cli import main

        main(["run", *words], prog_name="gradwatch")
        return
    seen = Oracle()
    sys.argv = words
    sys.path[0] = os.path.dirname(words[0])
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        (folder / "seen").write_bytes(pickle.dumps(list(seen.rows.values())))


if __name__ == "__main__":
    how, out = sys.argv[1], Path(sys.argv[2])
    if not torch.cuda.is_available():  # as in torch's builds for a CPU; of what is frozen it says that it was leaked
        sys.modules["triton"] = None
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # torch imports its compiler with the first optimizer
    if how == "gradwatch":
        importlib.import_module("gradwatch.launcher.autowatch")
    gc.freeze()  # else every fork walks through, and so copies, all of torch as its interpreter ends
    for number, line in enumerate(sys.stdin):
        folder = out / str(number)
        folder.mkdir(parents=True)
        pid = os.fork()
        if pid == 0:
            child(how, folder, *json.loads(line))  # and then to the end of the interpreter, as a script goes
            sys.exit()
        _, status = os.waitpid(pid, 0)
        (folder / "code").write_text(str(os.waitstatus_to_exitcode(status)))
        print(number, flush=True)
