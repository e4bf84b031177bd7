"""A version that follows the log and answers: the server and the scoring role use it."""
