"""The command line: a file for each command, which assembles its parts and prints the result."""
