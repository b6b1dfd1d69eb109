"""What is on the wire: every event of every topic as a frozen, strict pydantic model."""
