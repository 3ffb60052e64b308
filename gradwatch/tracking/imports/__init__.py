"""Runs that gradwatch never saw, from what other tools logged of them: a steps table and no layers."""
