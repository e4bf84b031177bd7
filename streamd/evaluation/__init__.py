"""Evaluation compares ways of keeping a model up to date, on a recorded log."""
