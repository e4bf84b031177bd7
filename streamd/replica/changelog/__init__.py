"""The changelog: its records, its topic in Kafka, and which records count."""
