"""The connection to Kafka: clients, reading, positions and lag."""
