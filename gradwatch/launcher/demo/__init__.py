"""The demo's trainings: plain PyTorch loops with one line of gradwatch in them, and what runs many of them at once."""
