"""What debuggers run: records of the past into the log again, with care."""
