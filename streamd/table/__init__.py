"""The log as tables: Arrow record batches over its mapped segments, and SQL over them."""
