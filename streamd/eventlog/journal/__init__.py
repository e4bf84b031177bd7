"""The journal: one line for each commit, read by everyone who follows the log."""
