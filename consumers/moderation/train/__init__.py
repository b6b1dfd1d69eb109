"""Trains the moderation classifier: `python -m consumers.moderation.train --data DIR --out DIR`."""
