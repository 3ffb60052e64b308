"""A Watch in a notebook: what it shows of itself, and `show()`, the run on one screen that is drawn anew as it goes on.

The screen is drawn by a process of its own from the run's files; a thread hands what it prints to the notebook. The
training waits for neither.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
from html import escape
from typing import TYPE_CHECKING, Any

from gradwatch.errors import tell
from gradwatch.recording.courier_process import child_environment
from gradwatch.storage.shared_folder import home_of

if TYPE_CHECKING:
    from gradwatch.recording.watch import Watch


def in_a_line(watch: Watch) -> str:
    """A Watch as its repr: `Watch('mlp', 120 steps, open, gradwatch-runs/20260131-120000-mlp)`."""
    state = "closed" if watch.closed else "open"
    return f"Watch({watch._writer.run.name!r}, {watch._stepper.steps:,} steps, {state}, {watch.dir})"


def in_a_notebook(watch: Watch) -> str:
    """A Watch in a notebook: the same, what happens on each step, and how to look at what it recorded."""
    more = f"gradwatch.open_history({str(watch.dir)!r}).plot()" if watch._writes else ""
    return f"<b>{escape(repr(watch))}</b><pre>{escape(watch.plan())}</pre><code>{escape(more)}</code>"


def show(watch: Watch) -> None:
    """Show the run below the cell of a notebook, drawn anew every two seconds or less often, until it ends.

    Loss, total norm with its threshold, clip rate, the layers that stand out, findings: what `gradwatch show --follow`
    shows in a terminal. Once the Watch is closed: how the run ended, for which this waits. Without a notebook it is one
    line on stderr that says what to do instead.
    """
    if not watch._writes:
        tell("gradwatch: watch.show() has nothing to show: this process records no run")
        return
    home = home_of(watch.dir)
    words = [sys.executable, "-m", "gradwatch", "show", "--frames", str(home.resolve())]
    instead = f"gradwatch show --follow {shlex.quote(str(home))}"
    if not _has_kernel():
        tell(f"gradwatch: watch.show() draws in a notebook, and here is none; in another terminal: {instead}")
        return
    from IPython.display import display

    shown = display({"text/plain": f"{watch!r}: the view starts"}, raw=True, display_id=True)
    try:
        # In a session of its own: the notebook's interrupt is for the training.
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
            start_new_session=True,
        )
        forwarder = threading.Thread(
            target=_forward, args=(process, shown, instead), name="gradwatch-show", daemon=True
        )
        forwarder.start()
    except (OSError, RuntimeError) as error:
        tell(f"gradwatch: watch.show() cannot start its process ({error}); in a terminal: {instead}")
        return
    if watch.closed:
        forwarder.join()


def _has_kernel() -> bool:
    """Whether a notebook's front end sees what is displayed: IPython in a terminal has no kernel."""
    try:
        return sys.modules["IPython"].get_ipython().kernel is not None
    except (KeyError, AttributeError):
        return False


def _forward(process: subprocess.Popen[bytes], display: Any, instead: str) -> None:
    """Hand each line of the process, a MIME bundle, to the notebook, until the process ends."""
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            display.update(json.loads(line), raw=True)
    if process.returncode:
        display.update({"text/plain": f"watch.show() ended ({process.returncode}); in a terminal: {instead}"}, raw=True)
