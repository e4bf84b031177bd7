"""Bytes to events: used by ingest, by the server for events sent by REST, and by imports."""
