"""MLflow: the courier that delivers runs, and what reads them back."""
