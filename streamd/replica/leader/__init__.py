"""The leader of a log on many machines: its claim of a term, succession, publishing."""
