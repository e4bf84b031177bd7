"""A log as tables, graph and samples, and tables as events of a log."""
