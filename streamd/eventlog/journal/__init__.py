"""The journal: one line for each commit, read by all that follow the log."""
