"""The settings: a tree of frozen branches, from a file, the environment and the options."""
