"""Callbacks that watch a framework's own training loop. Importing this imports none of the frameworks."""
