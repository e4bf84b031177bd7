"""The order of events in the log: partitions merged by time, deletes and rows placed."""
