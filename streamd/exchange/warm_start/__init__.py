"""A log that starts with history from a file and continues with topics: the import that can be
killed and repeated, and the seam between both."""
