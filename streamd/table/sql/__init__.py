"""SQL over a snapshot of a log, by DuckDB."""
