"""One watched training: hooks, steps, rows, and the Watch that the loop talks to."""
