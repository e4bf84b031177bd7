"""What backtests and the live model give to MLflow, by its own client."""
