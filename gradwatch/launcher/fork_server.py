"""`python -m gradwatch ...` in a fork of a process that has imported torch: it begins at once, not after 3 CPU seconds.

Only for scripts that are known to need nothing before torch is imported: of the environment that Python and torch read
as they start (PYTHONHASHSEED, OMP_NUM_THREADS), a fork is given nothing but the number of threads.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwatch.storage.many_runs import ctrl_c_waits

# imported, and nothing more: threads that an operation starts would not be there in a fork
IMPORTED = ["torch", "torch._dynamo", "gradwatch.cli.run", "gradwatch.launcher.run", "gradwatch.launcher.autowatch"]

_starting = threading.Lock()


def can_fork() -> bool:
    """Whether this platform has fork servers."""
    return "forkserver" in multiprocessing.get_all_start_methods()


class Forked:
    """A process of `command`, with what is used of a `subprocess.Popen`; the first one starts the server."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        context: Any = multiprocessing.get_context("forkserver")
        words = list(command[command.index("gradwatch") + 1 :])
        self._process = context.Process(target=_run, args=(words, dict(environment), str(output)))
        with _starting, ctrl_c_waits():
            context.set_forkserver_preload(IMPORTED)
            self._process.start()
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative of a signal; None while it is at work."""
        code: int | None = self._process.exitcode
        return code

    def poll(self) -> int | None:
        """The same, asked for now."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended.

        Raises:
            TimeoutExpired: it goes on.
        """
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("gradwatch", timeout or 0.0)
        return self.returncode


def _run(words: list[str], environment: dict[str, str], output: str) -> None:
    """In the fork: become what `python -m gradwatch WORDS` would be, with its end."""
    os.setsid()
    with open(output, "wb") as file, open(os.devnull, "rb") as nothing:
        for stream, number in ((nothing, 0), (file, 1), (file, 2)):
            os.dup2(stream.fileno(), number)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, closefd=False) for n, mode in enumerate("rww"))
    os.environ.clear()
    os.environ.update(environment)
    code: Any = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        import torch

        torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", torch.get_num_threads())))
        sys.argv = ["gradwatch", *words]
        runpy.run_module("gradwatch", run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
    except KeyboardInterrupt:
        code = -signal.SIGINT
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # the end of an interpreter: other threads, exit functions
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        _end(code)


def _end(code: Any) -> None:
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code if isinstance(code, int) else int(code is not None))
