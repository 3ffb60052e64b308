"""Leaves with a message, and with threads and exit handlers under way."""

import atexit
import sys
import threading
import time

atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.2), print("a thread"))).start()
sys.exit("that is all")
