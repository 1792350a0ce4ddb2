"""Models and tokenizers by path or hub id, of every known layout, with errors that a user can act on."""

import hashlib
import re
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import loop_rl
from loop_rl import hub
from loop_rl.errors import UserError
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.models.checkpoints import load_checkpoint, read_config
from loop_rl.training.checkpoints import MANIFEST, find_fault, latest_checkpoint

EMBEDDED = Path(loop_rl.__file__).parent / "embedded"

# What is asked of the hub, in this order; never code. A .bin only where there are no safetensors.
_CONFIG = ("config.json",)
_FILES = ("*.json", "model*.safetensors", "tokenizer*", "*.txt", "*.model", "*.jinja")
_PICKLED = ("pytorch_model*.bin",)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def resolve_model(path: str) -> str:
    """`embedded`, a run folder (its newest checkpoint), a model folder, or a hub id, as from_pretrained takes it."""
    if path == "embedded":
        return str(EMBEDDED)
    folder = Path(path)
    for inner in (folder / "model", folder):
        if (inner / "config.json").is_file():
            return str(inner)
    if (folder / "checkpoints").is_dir():
        checkpoint = latest_checkpoint(folder / "checkpoints")
        if checkpoint is None:
            raise UserError(
                f"{folder / 'checkpoints'} holds no complete checkpoint; train the run further, or name a model"
            )
        return str(checkpoint / "model")
    if folder.exists():
        raise UserError(f"{folder} holds neither a model (config.json) nor a run (checkpoints/)")
    return path


def load_config(path: str) -> LoopedConfig:
    """The configuration of the looped model at `path`; UserError when nothing is there, or it is not looped."""
    return _named(read_config, _fetch(path, resolve_model(path)))


def config_folder(path: str) -> Path:
    """A folder with the config.json of the model at `path`; of a hub model nothing more is fetched."""
    return _fetch(path, resolve_model(path), with_weights=False)


def model_folder(path: str) -> Path:
    """The folder of the model at `path`, fetched where it is the hub's; UserError when its files are damaged."""
    folder = _fetch(path, resolve_model(path))
    _verify(path, folder)
    return folder


def load_model(path: str, dtype: str = "float32") -> tuple[LoopedForCausalLM, PreTrainedTokenizerBase]:
    """The looped model and its tokenizer, whatever layout it is in: our own or a released family's.

    Strict: every weight present, of its shape, and none left over. No code that comes with a checkpoint is run.

    Raises:
        UserError: nothing there, not a looped model, damaged or mismatched weights, no tokenizer.
    """
    folder = model_folder(path)
    model = _named(load_checkpoint, folder, getattr(torch, dtype))
    return model, _tokenizer(folder, model.config)


def load_tokenizer(path: str, config: LoopedConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of the model at `path`, whose configuration is `config`; UserError when there is none."""
    return _tokenizer(_fetch(path, resolve_model(path)), config)


def _named(function, *arguments):
    """Call it; a user's fault is said to lie in the recipe's key."""
    try:
        return function(*arguments)
    except UserError as error:
        raise UserError(f"model.path: {error}") from error


def _fetch(path: str, source: str, with_weights: bool = True) -> Path:
    """The model's folder: here already, or the hub's files in the local cache. A hub model's config is read first, so
    that nothing large is fetched of a model that can't be used."""
    if Path(source).exists():
        return Path(source)
    silent = hub.unreachable()

    def download(*patterns: str) -> Path:
        return Path(snapshot_download(source, allow_patterns=list(patterns), local_files_only=silent is not None))

    try:
        config = download(*_CONFIG)
        _named(read_config, config, False)
        if not with_weights:
            return config
        folder = download(*_FILES)
        return folder if any(folder.glob("*.safetensors")) else download(*_FILES, *_PICKLED)
    except (OSError, ValueError) as error:
        raise UserError(
            f"model.path: no looped model at {path!r}: give a folder with config.json, `embedded`, or a hub id that "
            f"this machine can reach ({silent or _first_line(error)})"
        ) from error


def _verify(path: str, folder: Path) -> None:
    """Compare sizes and digests where they are known: a run's checkpoint has a manifest, the hub's cache names a large
    file by its SHA-256."""
    place = folder.parent
    if folder.name == "model" and (place / MANIFEST).is_file():
        if not (Path(path) / "checkpoints").is_dir():  # a run's newest was checked when it was chosen
            fault = find_fault(place)
            if fault is not None:
                raise UserError(f"model.path: the checkpoint {place} is damaged ({fault}); use another one")
    for file in folder.iterdir():
        digest = file.resolve().name
        if file.is_symlink() and _SHA256.fullmatch(digest):
            with file.open("rb") as content:
                if hashlib.file_digest(content, "sha256").hexdigest() != digest:
                    raise UserError(
                        f"model.path: {file} differs from its SHA-256; delete {file.resolve()} and fetch it again"
                    )


def _tokenizer(folder: Path, config: LoopedConfig) -> PreTrainedTokenizerBase:
    """The folder's tokenizer, with the special tokens of the config where that names one."""
    try:
        # with our config, so that a family's config.json is not taken for some model of transformers'
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"model.path: no tokenizer in {folder} ({_first_line(error)}); copy the model's tokenizer files there"
        ) from error
    for name in ("bos_token", "eos_token", "pad_token"):
        token = getattr(config, f"{name}_id")
        if isinstance(token, int) and token < len(tokenizer) and getattr(tokenizer, f"{name}_id") != token:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(token))
    return tokenizer


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
