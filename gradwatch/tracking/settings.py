"""The settings of MLflow under which everything here talks to a tracking server."""

from __future__ import annotations

# MLflow's own retries block a call for up to 20 minutes, and one that creates a run makes two of it; the courier has
# its own, between passes.
MLFLOW_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
