"""The roles as processes, and their supervisor. Only this room may import every other."""
