"""Models and tokenizers by path or hub id, of every known layout, with errors that a user can act on."""

import hashlib
import re
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import loop_rl
from loop_rl import hub
from loop_rl.errors import UserError, first_line
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.models.adapters import merged_weights
from loop_rl.models.families import load_checkpoint, read_config
from loop_rl.models.families.files import WeightFiles
from loop_rl.runs.checkpoints import MANIFEST, checkpoint_step, find_fault, latest_checkpoint

EMBEDDED = Path(loop_rl.__file__).parent / "embedded"

# What is asked of the hub, in this order; never code. A .bin only where there are no safetensors.
_CONFIG = ("config.json", "generation_config.json")
_FILES = ("*.json", "model*.safetensors", "tokenizer*", "*.txt", "*.model", "*.jinja")
_PICKLED = ("pytorch_model*.bin",)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def resolve_model(path: str | Path) -> str:
    """The model's folder, or the hub id as it is; every command and recipe means the same by a path.

    `embedded`; a folder with config.json; a checkpoint, whose model is in `model`; a run folder: see `run_weights`.

    Raises:
        UserError: a folder that is none of these, or a run that has saved no weights.
    """
    if str(path) == "embedded":
        return str(EMBEDDED)
    folder = Path(path)
    if (folder / "config.json").is_file():
        return str(folder)
    weights = run_weights(folder)
    if weights is not None:
        return str(weights[0])
    if (folder / "checkpoints").is_dir() or (folder / "recipe.yaml").is_file():
        raise UserError(
            f"{folder} is a run without a complete checkpoint, and without a finished model; train it further (a "
            "checkpoint is written every save_steps, and at the end), or name another model"
        )
    if folder.exists():
        raise UserError(
            f"{folder} holds neither a model (config.json), nor a run (checkpoints/step_N/model, or model/)"
        )
    return str(path)


def run_weights(run: Path) -> tuple[Path, int] | None:
    """Which weights a run folder means: those of its newest complete checkpoint, and where it has none, its `model`.

    Returns the model's folder and its step (0 for `model`), or None where there is neither.
    """
    checkpoint = latest_checkpoint(run / "checkpoints") if (run / "checkpoints").is_dir() else None
    if checkpoint is not None:
        return checkpoint / "model", checkpoint_step(checkpoint)
    return (run / "model", 0) if (run / "model" / "config.json").is_file() else None


def load_config(path: str | Path) -> LoopedConfig:
    """The configuration of the looped model at `path`; UserError when nothing is there, or it is not looped."""
    return _named(read_config, _fetch(path, resolve_model(path)))


def config_folder(path: str | Path) -> Path:
    """A folder with the config.json of the model at `path`; of a hub model nothing more is fetched."""
    return _fetch(path, resolve_model(path), with_weights=False)


def model_folder(path: str | Path) -> Path:
    """The folder of the model at `path`, fetched where it is the hub's; UserError when its files are damaged."""
    folder = _fetch(path, resolve_model(path))
    _verify(path, folder)
    return folder


def load_model(path: str | Path, dtype: str = "float32") -> tuple[LoopedForCausalLM, PreTrainedTokenizerBase]:
    """The looped model and its tokenizer, whatever layout it is in: our own or a released family's.

    Strict: every weight present, of its shape, and none left over. No code that comes with a checkpoint is run.

    Raises:
        UserError: nothing there, not a looped model, damaged or mismatched weights, no tokenizer.
    """
    folder = model_folder(path)
    model = _named(load_checkpoint, folder, getattr(torch, dtype))
    return model, _tokenizer(folder, model.config)


def differing_weight(looped: LoopedForCausalLM, saved: Path) -> str | None:
    """The first weight of `looped`, adapters merged, that isn't what the model's folder `saved` has; None for none."""
    files = WeightFiles(saved)
    for name, value in merged_weights(looped).items():
        if name not in files.dtypes:  # a tied head
            continue
        stored = files.tensor(name)
        bound = 8 * float(value.abs().max()) * torch.finfo(stored.dtype).eps  # a few products, summed and stored
        if stored.shape != value.shape or not torch.allclose(stored.to(value), value, rtol=0, atol=bound):
            return name
    return None


def load_tokenizer(path: str | Path, config: LoopedConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of the model at `path`, whose configuration is `config`; UserError when there is none."""
    return _tokenizer(_fetch(path, resolve_model(path)), config)


def _named(function, *arguments):
    """Call it; a user's fault is said to lie in the recipe's key."""
    try:
        return function(*arguments)
    except UserError as error:
        raise UserError(f"model.path: {error}") from error


def _fetch(path: str | Path, source: str, with_weights: bool = True) -> Path:
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
            f"model.path: no looped model at {str(path)!r}: give a folder with config.json, `embedded`, or a hub id "
            f"that this machine can reach ({silent or first_line(error)})"
        ) from error


def _verify(path: str | Path, folder: Path) -> None:
    """Compare sizes and digests where they are known: a run's checkpoint has a manifest, the hub's cache names a large
    file by its SHA-256."""
    place = folder.parent
    if folder.name == "model" and (place / MANIFEST).is_file():
        if not (Path(path) / "checkpoints").is_dir():  # run_weights has just checked a run's newest
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
    """The folder's tokenizer, with the special tokens of the config where that names one.

    Raises:
        UserError: none there, or one with ids that the embedding has no rows for.
    """
    try:
        # with our config, so that a family's config.json is not taken for some model of transformers'
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"model.path: no tokenizer in {folder} ({first_line(error)}); copy the model's tokenizer files there"
        ) from error
    _named(check_vocabulary, tokenizer, config.vocab_size, str(folder))
    for name in ("bos_token", "eos_token", "pad_token"):
        token = getattr(config, f"{name}_id")
        if isinstance(token, int) and token < len(tokenizer) and getattr(tokenizer, f"{name}_id") != token:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(token))
    return tokenizer


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, rows: int, model: str) -> None:
    """UserError for a tokenizer that gives out ids past the embedding's rows, as one does that a token was added to."""
    token, last = max(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    if last >= rows:
        raise UserError(
            f"the tokenizer in {model} has ids up to {last} ({token!r}), the model's embedding {rows} rows: "
            "use the tokenizer that the model was trained with, or resize its embedding"
        )
