"""Stands in for a cluster's queue: a pool of its own that runs what is submitted to it.

python second_pool.py serve 2 &                     # a pool of two workers
gradwatch sweep --prefix 'python second_pool.py submit' --jobs 2 ... train.py

What `srun`, `ray job submit` or `ssh` do for other machines, this does for another process of this one: it takes a
command, waits for its end, passes its output and its exit code on, and ends it when the sweep is interrupted.
"""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

PLACE = Path(".second-pool")  # a socket in the working directory
KEY = b"this example is for one machine"


def serve(workers):
    with Listener(str(PLACE), authkey=KEY) as listener, ThreadPoolExecutor(workers) as pool:
        print(f"{workers} workers are waiting", flush=True)
        while True:
            pool.submit(work, listener.accept())


def work(connection: Connection):
    command, environment, folder = connection.recv()
    process = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    threading.Thread(target=end_with, args=(connection, process), daemon=True).start()
    out, _ = process.communicate()
    connection.send((process.returncode, f"in the pool of process {os.getpid()}\n{out}"))


def end_with(connection, process):
    try:
        connection.recv()  # nothing more is sent: this ends when the other side has gone
    except (EOFError, OSError):
        process.terminate()


def submit(command):
    with Client(str(PLACE), authkey=KEY) as connection:
        connection.send((command, dict(os.environ), os.getcwd()))
        code, out = connection.recv()
    print(out, end="")
    raise SystemExit(code if code >= 0 else 1)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        submit(sys.argv[2:])
