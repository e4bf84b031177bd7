"""Kafka to events: poll, decode, merge by time, hand to the log. Never imports torch or numba."""
