"""Trainings that end in every way there is, each in a process of its own: `python endings.py DIR` forks one per case.

A case leaves its exit code in DIR/NAME/code, and its run in DIR/NAME; in DIR/NAME/seconds how long a process that hangs
lived after the signal.
"""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from training import mlp, train, watch

STEPS = 50
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Training:
    """A small watched training; `take` steps are recorded, whatever comes after."""

    def __init__(self, folder):
        self.model = mlp()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.watch = watch(self.model, self.optimizer, folder)

    def take(self, steps=STEPS):
        train(self.model, self.optimizer, steps, after_step=lambda model, loss: self.watch.log(loss=loss))


def kill_myself(number):
    os.kill(os.getpid(), number)
    time.sleep(30)  # a handler runs before this begins; without one this is never reached
    raise AssertionError("the signal did not end the process")


def signal_soon(training):
    """From outside, once the main thread hangs; when, is noted beside the run."""
    note = training.watch.dir.parent / "signalled"
    code = "import os, sys, time; time.sleep(0.2); open(sys.argv[2], 'w').write(str(time.monotonic())); "
    code += "os.kill(int(sys.argv[1]), 15)"
    subprocess.Popen([sys.executable, "-c", code, str(os.getpid()), str(note)])


@case
def sigterm(training):
    training.take()
    kill_myself(signal.SIGTERM)


@case
def sighup(training):
    training.take()
    kill_myself(signal.SIGHUP)


@case
def sigint(training):
    training.take()
    kill_myself(signal.SIGINT)


@case
def sigterm_while_rows_are_handed_over(training):
    """In the middle of a drain, when the rows are neither here nor there."""
    training.take()
    sink = training.watch._recorder.sink

    def slow(block):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(5):
            time.sleep(0.01)
        sink(block)

    training.watch._recorder.sink = slow
    training.watch._drain()
    time.sleep(30)


@case
def sigterm_while_closing(training):
    training.take()
    save = training.watch._writer._save

    def slow():
        time.sleep(0.2)
        save()

    training.watch._writer._save = slow
    code = f"import os, time; time.sleep(0.1); os.kill({os.getpid()}, 15)"
    subprocess.Popen([sys.executable, "-c", code])
    time.sleep(0.05)
    training.watch.close()
    time.sleep(30)


@case
def sigterm_with_an_own_handler(training):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    training.take()
    kill_myself(signal.SIGTERM)


@case
def sigterm_after_close(training):
    training.take()
    training.watch.close()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    kill_myself(signal.SIGTERM)


def hang_device(training):
    """What is recorded so far is on its way to the disk; what comes is on a device that answers no more."""
    training.take()
    training.watch._drain()
    training.watch._recorder.ring.stage = lambda *_: time.sleep(600)
    training.optimizer.step()


@case
def sigterm_while_the_device_hangs(training):
    """The handler runs, closes the Watch, and waits for the device."""
    hang_device(training)
    signal_soon(training)
    time.sleep(60)


@case
def sigterm_while_the_main_thread_hangs(training):
    """In a C call that no signal interrupts, as in a synchronisation with that device."""
    hang_device(training)
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    signal_soon(training)
    libc.pthread_mutex_lock(mutex)


@case
def sys_exit(training):
    training.take()
    sys.exit(3)


@case
def exception(training):
    training.take()
    raise ValueError("of the loop")


@case
def memory_error(training):
    training.take()
    raise MemoryError


@case
def out_of_device_memory(training):
    """And not a byte is left for the last drain either."""
    training.take()

    def cat(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    torch.cat = cat
    cat()


@case
def fork(training):
    """The fork steps, logs and ends as a script does; its parent goes on."""
    training.take(20)
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        train(training.model, training.optimizer, 10)
        training.optimizer.step()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert training.watch.closed
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    training.take(30)


def load(training, epochs, **settings):
    """Train on batches that a loader's workers make; they are told to end while the Watch is open."""
    data = torch.utils.data.TensorDataset(torch.randn(STEPS // epochs, 6, dtype=torch.float64))
    batches = torch.utils.data.DataLoader(data, **settings)
    for _ in range(epochs):
        for (x,) in batches:
            training.optimizer.zero_grad()
            training.model(x).sum().backward()
            training.optimizer.step()
    del batches


@case
def loader(training):
    """Workers that are forks and live for an epoch."""
    load(training, 1, num_workers=2, multiprocessing_context="fork")


@case
def persistent_loader(training):
    load(training, 2, num_workers=2, multiprocessing_context="fork", persistent_workers=True)


@case
def spawned_loader(training):
    load(training, 2, num_workers=1, multiprocessing_context="spawn", persistent_workers=True)


def main(out):
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # torch imports its compiler with the first optimizer
    gc.freeze()  # else every fork walks through, and so copies, all of torch as its interpreter ends
    for name, act in CASES.items():
        folder = out / name
        folder.mkdir(parents=True)
        pid = os.fork()
        if not pid:
            sys.stderr = open(folder / "stderr", "w", buffering=1)  # noqa: SIM115  (until the end of the interpreter)
            act(Training(folder))  # and then to the end of the interpreter, as a script goes
            sys.exit()
        _, status = os.waitpid(pid, 0)
        if (signalled := folder / "signalled").exists():
            (folder / "seconds").write_text(str(time.monotonic() - float(signalled.read_text())))
        (folder / "code").write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
