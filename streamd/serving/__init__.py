"""A version that follows the log and answers, for the server and the scoring role."""
