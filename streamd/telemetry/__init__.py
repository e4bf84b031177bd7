"""Metrics, logs, heartbeats and traces of a running role."""
