"""Clients: a page and a terminal."""
