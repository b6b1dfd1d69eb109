"""Sessions, context and routing: turns accepted prompts into inference requests, one turn of a session at a time."""
