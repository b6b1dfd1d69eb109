"""What writes to the log from outside: the edge for users, replay for debuggers."""
