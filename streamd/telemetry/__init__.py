"""Metrics, logs and heartbeats: what the rest of the world sees of a running role."""
