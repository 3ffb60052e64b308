"""`python -m package`, and `python package`."""

import os
import sys

if __package__:
    from package import other
else:
    import other

print(sys.argv[1:], os.path.basename(sys.argv[0]), __package__, __spec__ and __spec__.name, other.VALUE)
print(os.path.realpath(sys.path[0]) == os.getcwd(), os.path.basename(sys.path[0]))
