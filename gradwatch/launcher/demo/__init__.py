"""The demo: two training scripts as anybody might have written them, their data, and the sweeps over both."""
