"""Echoes its input, writes to both streams, and leaves by `sys.exit`; without torch."""

import sys

print(sys.argv[1:], __name__, __file__ == sys.argv[0], sys.path[0] == __file__.rpartition("/")[0], __spec__)
for line in sys.stdin:
    print(line.upper(), end="")
print("to stderr", file=sys.stderr)
sys.stdout.write("no newline at the end")
sys.exit(3)
