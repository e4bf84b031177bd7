"""The event log: one writer commits batches of events durably, any number of readers follow."""
