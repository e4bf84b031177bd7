"""Scores events into a topic. A role of its own scores each event as it becomes visible, by the
version that serves, and as its window's scores are computed later."""
