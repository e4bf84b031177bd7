"""Facts about (source, candidate) pairs: exact functions of the log, bounded in memory."""
