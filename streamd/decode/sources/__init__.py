"""Mapped topics: a declared source decides how records become events."""
