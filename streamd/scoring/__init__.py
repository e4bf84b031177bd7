"""Events -> scores in a topic: a role of its own scores each event as it becomes visible, by the
version that serves, as its window will be scored later."""
