"""Turns and tokens by user and hour: a fold of chat.turns, kept by Faust as tables with their changelogs."""
