"""Policies × seeds of one script: which trainings there are, the processes that run them, and what comes of it."""
