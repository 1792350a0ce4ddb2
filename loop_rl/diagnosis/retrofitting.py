"""`loop-rl retrofit`: an ordinary checkpoint in, a looped one out, with what the cut costs on held-out text."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loop_rl.errors import UserError, first_line

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from loop_rl.models.retrofit import Cut

RECORD = "retrofit.json"


@dataclass(frozen=True)
class Report:
    """What a retrofit came to. losses: nats per token of the source and of each depth that was measured."""

    source: str
    out: str
    kept: list[int]
    skipped: list[int]
    text: str
    source_loss: float
    losses: dict[int, float]

    def lines(self) -> str:
        skipped = f"without layers {', '.join(map(str, self.skipped))}" if self.skipped else "every layer kept"
        said = {1: skipped}
        return "\n".join(
            [
                f"loss on {self.text}, in nats per token",
                f"  {'source':9} {self.source_loss:.4f}",
                *(
                    f"  depth {depth:<3} {loss:.4f}  {said.get(depth, '')}".rstrip()
                    for depth, loss in self.losses.items()
                ),
                f"written: {self.out}",
            ]
        )


def run_retrofit(
    source: str,
    out: str,
    cut: Cut,
    depth: int,
    injection: str,
    data: str,
    data_folder: str | None,
    rows: int,
    length: int,
    threads: int | None,
) -> Report:
    """Writes the looped model with its tokenizer to the folder `out`, and measures both models on held-out text.

    Raises:
        UserError: no such source, one that can't be taken over exactly, a cut that doesn't fit it, `out` not empty.
    """
    import torch

    from loop_rl.diagnosis.running import check_length, text_rows
    from loop_rl.models.loading import check_vocabulary
    from loop_rl.models.retrofit import retrofit

    target = Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists already; name a new folder")
    if threads is not None:
        torch.set_num_threads(threads)
    model, tokenizer = load_source(source, cut)
    check_length(length, model.config)
    check_vocabulary(tokenizer, model.config.vocab_size, source)
    ids = text_rows(data, data_folder, tokenizer, rows, length)
    source_loss = mean_loss(model, ids)
    looped = retrofit(model, cut, depth, injection)
    report = Report(
        source=source,
        out=out,
        kept=cut.kept,
        skipped=cut.skipped(model.config.num_hidden_layers),
        text=f"{rows} rows of {length} tokens of {data}",
        source_loss=source_loss,
        losses={at: mean_loss(looped, ids, depth=at) for at in sorted({1, 2, depth, 2 * depth})},
    )
    _write(looped, tokenizer, report, target)
    return report


def load_source(source: str, cut: Cut) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """An ordinary model in its own dtype, and its tokenizer, from a folder or the hub; its config is checked first.

    Raises:
        UserError: nothing there, weights that don't fit the config, no tokenizer, or as `retrofit`.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from loop_rl import hub
    from loop_rl.models.retrofit import check_source

    silent = None if Path(source).exists() else hub.unreachable()
    where: dict[str, Any] = {"local_files_only": silent is not None, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(source, **where)
        check_source(config)
        cut.check(config.num_hidden_layers)
        model, found = AutoModelForCausalLM.from_pretrained(
            source, dtype="auto", output_loading_info=True, ignore_mismatched_sizes=True, **where
        )
        tokenizer = AutoTokenizer.from_pretrained(source, **where)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"no model and tokenizer can be read from {source} ({silent or first_line(error)})") from error
    for kind in ("missing_keys", "mismatched_keys"):
        if found[kind]:
            name = min(map(str, found[kind]))
            raise UserError(f"the weights in {source} do not fit its config.json: {kind.replace('_', ' ')} {name}")
    return model.eval(), tokenizer


def mean_loss(model: PreTrainedModel, ids: Tensor, **settings: Any) -> float:
    """Mean cross-entropy of the next tokens, in nats; ids int64 [rows, tokens]."""
    import torch
    import torch.nn.functional as F

    losses = []
    with torch.no_grad():
        for row in ids:
            logits = model(row[None], **settings).logits[0, :-1].float()
            losses.append(F.cross_entropy(logits, row[1:]))
    return float(torch.stack(losses).mean())


def _write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, report: Report, target: Path) -> None:
    """Model, tokenizer and record; the folder has its name only when it is whole."""
    record = {**vars(report), "losses": {str(depth): loss for depth, loss in report.losses.items()}}
    temporary = target.with_name(f".incomplete_{target.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    (temporary / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if target.exists():
        target.rmdir()
    temporary.rename(target)
