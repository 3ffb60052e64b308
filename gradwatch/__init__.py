"""gradwatch: every layer's gradient on every step, the clipping policy you choose, and the proof in MLflow."""

__version__ = "0.1.0"
