"""A recorded log to a table: ways of keeping a model up to date beside each other, and their
report."""
