"""A run's folder on disk: written, locked, merged, read."""
