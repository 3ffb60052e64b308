"""A run's folder on disk: written, locked, merged, read."""

from gradwatch.storage import address_space

address_space.spare()  # before the first `import pyarrow`
