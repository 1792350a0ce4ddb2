"""Models and tokenizers by path, with errors that a user can act on."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

import loop_rl
from loop_rl import hub
from loop_rl.errors import UserError
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.training.checkpoints import latest_checkpoint

EMBEDDED = Path(loop_rl.__file__).parent / "embedded"


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
    source = resolve_model(path)
    silent = _hub_silent(source)
    try:
        config = AutoConfig.from_pretrained(source, local_files_only=silent is not None)
    except (OSError, ValueError) as error:
        raise UserError(
            f"model.path: no looped model at {path!r}: give a folder with config.json, `embedded`, or a hub id that "
            f"this machine can reach ({silent or _first_line(error)})"
        ) from error
    if not isinstance(config, LoopedConfig):
        raise UserError(f"model.path: {path!r} is a {config.model_type} model, which is not looped")
    return config


def load_model(path: str, dtype: str = "float32") -> tuple[LoopedForCausalLM, PreTrainedTokenizerBase]:
    """The looped model and its tokenizer, strictly: every weight present, of its shape, and none left over.

    Raises:
        UserError: nothing there, not a looped model, damaged or mismatched weights.
    """
    source = resolve_model(path)
    config = load_config(path)
    cached = _hub_silent(source) is not None
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            local_files_only=cached,
            dtype=getattr(torch, dtype),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with the key named
        )
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=cached)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"model.path: the checkpoint {path!r} can't be read ({_first_line(error)}); "
            "it may be cut short: copy it again"
        ) from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report.get(kind):
            first = sorted(map(str, report[kind]))[0]
            raise UserError(
                f"model.path: the weights of {path!r} do not fit its config.json: "
                f"{len(report[kind])} {kind.replace('_', ' ')}, "
                f"such as {first}"
            )
    return model, tokenizer


def _hub_silent(source: str) -> str | None:
    """Why the hub can't be asked for a model that is no folder here; its cache may still hold it."""
    return None if Path(source).exists() else hub.unreachable()


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
