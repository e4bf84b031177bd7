"""The log: one writer makes batches of events durable commits, any number of readers follow."""
