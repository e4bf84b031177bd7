"""The versions that training compares: champion, shadow, incumbent and nightly baseline."""
