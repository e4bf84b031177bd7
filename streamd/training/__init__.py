"""Training turns closed windows of the log into better weights.

It records inputs, scores them, learns them with replay, and checkpoints. It knows no server.
"""
