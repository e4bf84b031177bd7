"""The roles as processes, and their supervisor: the only room that may know every room."""
