"""Dead letters: events that do not fit, kept with the reason, replayed by hand."""
