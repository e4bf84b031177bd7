"""The command line: a file for each command, which puts parts together and prints answers."""
