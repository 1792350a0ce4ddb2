"""A tiny model of every family with a tokenizer of its vocabulary: the reference checkpoints, and one of our own."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from tests.tiny import tiny_model

REFERENCES = Path(__file__).resolve().parents[1] / "../shared/refs"
FAMILIES = ("huginn", "retro_llama", "ouro", "parcae", "own")
#: what the characters of a conversation are written as; ids 0, 1, 2 are the pad, the beginning and the end
CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz +-*=.?:"
CHAT = (
    "{% for m in messages %}{{ bos_token + m['role'][:1] + ':' + m['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token + 'a:' }}{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, of `CHARACTERS`."""
    vocabulary = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {c: 3 + i for i, c in enumerate(CHARACTERS)}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer, backend.decoder = Split(Regex("."), "isolated"), Fuse()
    special = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=CHAT, **special)


def write_model(name: str, folder: Path) -> Path:
    """The files of a family's tiny model; skips the test where there is no reference checkpoint of it."""
    folder.mkdir(parents=True, exist_ok=True)
    if name == "own":
        tiny_model(vocab_size=64).save_pretrained(folder)
    else:
        source = REFERENCES / name
        if not source.is_dir():
            pytest.skip(f"no reference checkpoint {source}")
        shutil.copyfile(source / "model.safetensors", folder / "model.safetensors")
        config = json.loads((source / "config.json").read_text())
        if name == "huginn":  # its special tokens are those of the released vocabulary, past the tiny one's
            config |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        (folder / "config.json").write_text(json.dumps(config))
    tokenizer().save_pretrained(folder)
    return folder
