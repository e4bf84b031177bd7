"""Reads events from Kafka: poll, decode, merge by time, commit. Never imports torch or numba."""
