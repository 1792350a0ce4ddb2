"""What terminal KV sharing and distilled prefill save on this machine, the ways of each taking turns."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from loop_rl.diagnosis.sharing import continuation_losses
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.attention.decoding import DecodeContext
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.attention.terminal import TerminalDecode, TerminalPrefill, cache_floats
from loop_rl.models.prefill import Endpoint, PrefillStudent, prefill, student_endpoint, teacher_endpoint

Say = Callable[[str], None]


@torch.no_grad()
def bench_decode(
    model: LoopedForCausalLM, batch: int, prompt: int, tokens: int, depth: int, runs: int, say: Say = lambda line: None
) -> list[dict[str, Any]]:
    """Decodes `tokens` tokens for `batch` rows after prompts of `prompt` random tokens, with either cache.

    Returns a row for each: cache, kib_per_token (of one row's KV cache, as its buffers measure), predicted_kib,
    tokens_per_second (median over runs, decoding alone), ratio (to the full cache's).
    """
    ids = torch.randint(model.config.vocab_size, (batch, prompt), generator=torch.Generator().manual_seed(0))
    ids, mask = ids.to(model.device), torch.ones(batch, prompt, dtype=torch.long, device=model.device)
    kinds = {"full": (PaddedContext, DecodeContext), "terminal": (TerminalPrefill, TerminalDecode)}
    speeds: dict[str, list[float]] = {name: [] for name in kinds}
    rows: dict[str, dict[str, Any]] = {}
    for run in range(runs + 1):  # the first of them warms up
        for name, (prefill_kind, decode_kind) in kinds.items():
            recorded = prefill_kind(model.config, mask, None, model.dtype, depth, record=True)
            _forward(model, ids, recorded)
            context = decode_kind(recorded, mask, 1, tokens)
            held = sum(x.nbytes for pair in context.banks.values() for x in pair)
            started = _now(model)
            for t in range(tokens):
                _forward(model, ids[:, t % prompt, None], context.step(torch.full((batch, 1), prompt + t)))
            if run:
                speeds[name].append(batch * tokens / (_now(model) - started))
            floats = cache_floats(model.config, depth, name == "terminal")
            rows[name] = {
                "cache": name,
                "kib_per_token": held / batch / (prompt + tokens) / 1024,
                "predicted_kib": floats * torch.finfo(model.dtype).bits / 8 / 1024,
            }
        say(f"run {run} of {runs}")
    median = {name: statistics.median(values) for name, values in speeds.items()}
    return [
        {**row, "tokens_per_second": median[name], "ratio": median[name] / median["full"]} for name, row in rows.items()
    ]


@torch.no_grad()
def bench_prefill(
    model: LoopedForCausalLM,
    student: PrefillStudent,
    text: Tensor,
    length: int,
    batch: int,
    depth: int,
    runs: int,
    say: Say = lambda line: None,
) -> list[dict[str, Any]]:
    """Prefills of `batch` prompts of `length` random tokens by the teacher, by fewer recurrences, and by the student.

    Returns a row for each: prefill, seconds (median), speed_up (over the teacher), loss (nats per token) of the second
    halves of `text`, int64 [rows, tokens], decoded at `depth` from the first halves prefilled that way, and
    perplexity, its relative change to the teacher's.
    """
    core = model.model
    ways: dict[str, Endpoint] = {f"teacher, {depth} recurrences": teacher_endpoint(core, depth)}
    ways |= {f"teacher, {few}": teacher_endpoint(core, few) for few in (3, 2, 1) if few < depth}
    ways["student"] = student_endpoint(core, student)
    ids = torch.randint(model.config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(0))
    ids, mask = ids.to(model.device), torch.ones(batch, length, dtype=torch.long, device=model.device)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs + 1):
        for name, endpoint in ways.items():
            started = _now(model)
            prefill(model, ids, mask, depth, endpoint)
            if run:
                seconds[name].append(_now(model) - started)
        say(f"run {run} of {runs}")
    losses = {
        name: continuation_losses(model, text.to(model.device), depth, True, endpoint).double().mean()
        for name, endpoint in ways.items()
    }
    first = next(iter(ways))
    return [
        {
            "prefill": name,
            "seconds": statistics.median(seconds[name]),
            "speed_up": statistics.median(seconds[first]) / statistics.median(seconds[name]),
            "loss": float(losses[name]),
            "perplexity": float((losses[name] - losses[first]).expm1()),
        }
        for name in ways
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows of either benchmark for a terminal."""
    import io

    from rich.console import Console
    from rich.table import Table

    forms = {"seconds": "{:.3f}", "speed_up": "{:.2f}x", "ratio": "{:.2f}x", "perplexity": "{:+.2%}", "loss": "{:.4f}"}
    grid = Table()
    for key in rows[0]:
        text = isinstance(rows[0][key], str)
        grid.add_column(key.replace("_", " "), justify="left" if text else "right")
    for row in rows:
        grid.add_row(*(v if isinstance(v, str) else forms.get(key, "{:.1f}").format(v) for key, v in row.items()))
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(grid)
    return console.file.getvalue()


def _forward(model: LoopedForCausalLM, ids: Tensor, context: PaddedContext | DecodeContext) -> Tensor:
    core = model.model
    prelude = core.prelude_forward(ids, context)
    z = core.endpoint(prelude, core.draw_initial_state(context.position_ids, None, prelude), context)
    return model.lm_head(core.coda_forward(z, context, prelude)[:, -1])


def _now(model: LoopedForCausalLM) -> float:
    """The clock, once an asynchronous device has finished."""
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
