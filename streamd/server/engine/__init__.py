"""The engine: one loop that follows the log and the versions and answers requests in batches."""
