"""Others' formats: files into a log or a topic, and a range of the log out of it."""
