"""Scores events into a topic. A role of its own scores each event as soon as it is visible, by the
version that serves, in the same way as the event's window is scored later."""
