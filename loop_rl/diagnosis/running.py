"""`loop-rl diagnose`: a looped model on a text, measured, with advice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from loop_rl.errors import UserError
from loop_rl.extras import extra
from loop_rl.recipe.rl import DataSection

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


def run_diagnose(
    model: str,
    data: str,
    folder: str | None,
    depth: int | None,
    rows: int,
    length: int,
    threshold: float,
    threads: int | None,
    out: str | None,
    progress: bool = True,
) -> tuple[str, str]:
    """Measures the model; returns (table, JSON), and draws the figure beside the JSON when `out` names a folder."""
    from rich.console import Console

    from loop_rl.evaluation.running import find_target

    if out is not None:
        extra("matplotlib.figure", "plot", "--out")  # before minutes of measuring
    target = find_target(model)
    import torch

    from loop_rl.diagnosis.measure import diagnose
    from loop_rl.diagnosis.render import plot_diagnosis, to_json, to_table
    from loop_rl.models.loading import load_model

    if threads is not None:
        torch.set_num_threads(threads)
    looped, tokenizer = load_model(target.model, "float32")
    check_length(length, looped.config)
    ids = text_rows(data, folder, tokenizer, rows, length)
    looped.eval()
    depth = looped.config.depth if depth is None else depth
    with Console(stderr=True).status("measuring") if progress else _Silent() as status:
        found = diagnose(looped, ids, depth, threshold, progress=lambda what: status.update(what))
    about = {"model": model, "data": data}
    as_json = to_json(found, **about)
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        (Path(out) / "diagnosis.json").write_text(as_json, encoding="utf-8")
        plot_diagnosis(found, Path(out) / "diagnosis.png", f"{model} on {data}, depth {depth}")
    return to_table(found), as_json


def check_length(length: int, config: PretrainedConfig) -> None:
    """UserError for rows that are longer than the context a model is made for."""
    context = config.max_position_embeddings
    if length > context:
        raise UserError(
            f"--length {length} passes the model's context of {context} (max_position_embeddings); lower it"
        )


def text_rows(data: str, folder: str | None, tokenizer: PreTrainedTokenizerBase, rows: int, length: int) -> Tensor:
    """Held-out questions with their answers, packed into rows: int64 [rows, length].

    Raises UserError when the data set has too little text.
    """
    from loop_rl.data import load_dataset
    from loop_rl.data.corpus import Corpus
    from loop_rl.data.prompts import all_prompt_ids

    examples = load_dataset(DataSection(name=data, folder=folder)).test
    texts = [f"{example.prompt} {example.answer}" for example in examples]
    documents = [ids[:length] for ids in all_prompt_ids(tokenizer, texts)]
    found = sum(map(len, documents))
    if found < rows * length:
        raise UserError(
            f"{data} has {found} held-out tokens, {rows} rows of {length} were asked for; lower one of them"
        )
    return Corpus(documents, [0] * len(documents), length, "all", 0).next_rows(rows)[0]


class _Silent:
    """Stands in for a status line where none is wanted."""

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, what: str) -> None:
        pass
