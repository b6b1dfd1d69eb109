"""What Parley runs on."""
