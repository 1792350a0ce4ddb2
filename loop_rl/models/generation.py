"""How a checkpoint generates: its generation_config.json, kept as it is, and the tokens that end a completion."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from loop_rl.errors import UserError, first_line
from loop_rl.models.config import LoopedConfig
from loop_rl.models.families.files import read_json

GENERATION_FILE = "generation_config.json"


class KeptGenerationConfig(GenerationConfig):
    """Saved as it was read. transformers reads a temperature without do_sample, but once a token id was changed it
    refuses to save one, which would end a run at its first checkpoint."""

    def validate(self, strict: bool = False, **options: Any) -> None:
        super().validate(strict=False, **options)


def read_generation_config(folder: Path, config: LoopedConfig) -> KeptGenerationConfig:
    """The folder's generation_config.json, or what follows from the config; its special tokens go into a config that
    names none.

    Its end tokens are all that the checkpoint names: those of our config first, then those of the file, then those of
    a released config.json. Its other special tokens are the file's, but where our config corrects the released one.

    Raises:
        UserError: a file that can't be read.
    """
    file, released = folder / GENERATION_FILE, config.checkpoint_config or {}
    values: dict[str, Any] = read_json(file) if file.is_file() else GenerationConfig.from_model_config(config).to_dict()
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(config, name) is None:
            setattr(config, name, values.get(name))
        ours, theirs = getattr(config, name), released.get(name)
        if values.get(name) is None or (theirs is not None and theirs != ours):
            values[name] = ours if name != "eos_token_id" else values.get(name)
    ends = _distinct(config.eos_token_id, values.get("eos_token_id"), released.get("eos_token_id"))
    values["eos_token_id"] = ends[0] if len(ends) == 1 else ends or None
    try:
        return KeptGenerationConfig.from_dict(values)
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file} has a value that can't be used ({first_line(error)}); copy it again") from error


def end_tokens(
    config: LoopedConfig, generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[int, ...]:
    """The ids that end a completion, in order: all that the model's generation config, its config and its tokenizer
    name, everywhere alike: in training, in evaluations, and wherever else something is sampled."""
    generated = None if generation is None else generation.eos_token_id
    return tuple(sorted(_distinct(generated, config.eos_token_id, getattr(tokenizer, "eos_token_id", None))))


def model_end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """`end_tokens` of a loaded model."""
    return end_tokens(model.config, model.generation_config, tokenizer)


def _distinct(*named: int | Iterable[int] | None) -> list[int]:
    found: dict[int, None] = {}
    for value in named:
        for token in [value] if isinstance(value, int) else value or []:
            found[int(token)] = None
    return list(found)
