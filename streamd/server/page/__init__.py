"""The status page: its content as JSON, and its static files."""
