"""Logging of backtests and of the live model to MLflow, by MLflow's own client."""
