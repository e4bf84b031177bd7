"""Facts about (source, candidate) pairs: features computed from the log, in bounded memory."""
