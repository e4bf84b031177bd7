"""Training turns closed windows of the log into better weights.

It records model inputs, scores each window, trains on it with replay, and writes checkpoints. It
does not depend on the server.
"""
