"""Reads and writes the formats of others: files into a log or topic, and a range of the log out."""
