"""One fastText training in a process of its own: `python -m consumers.moderation.train.child CORPUS MODEL SETTINGS`."""

from __future__ import annotations

import json
import sys

import fasttext


def main() -> None:
    """Trains on the corpus with the settings (JSON) and saves the model."""
    corpus, model, settings = sys.argv[1:]
    fasttext.train_supervised(corpus, **json.loads(settings)).save_model(model)


if __name__ == "__main__":
    main()
