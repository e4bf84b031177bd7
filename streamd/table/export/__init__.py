"""A log's new commits as files of a partitioned table in Parquet, or as snapshots of Iceberg
tables."""
