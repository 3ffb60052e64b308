"""Scripts started by gradwatch: `run`, `sweep` and `demo`."""
