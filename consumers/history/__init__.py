"""History: what was said, and the list of sessions, as views of chat.turns."""
