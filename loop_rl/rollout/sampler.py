"""Sampling groups in one process: prompts prefilled once, decoding batched over all completions, rows stop alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from loop_rl.errors import UserError
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.adaptive import adaptive_endpoint
from loop_rl.models.attention.context import Context
from loop_rl.models.attention.decoding import DecodeContext
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.attention.terminal import TerminalDecode, TerminalPrefill
from loop_rl.models.initial_state import hash_uint64, uniforms
from loop_rl.models.looped import LoopedModel, PreludeOutput
from loop_rl.models.prefill import PrefillStudent, student_endpoint
from loop_rl.rollout.batches import batches, token_budget
from loop_rl.rollout.record import Completion, Rollout
from loop_rl.rollout.sampling import Sampling, draw
from loop_rl.rollout.text import CompletionText

# Finished rows are dropped from the batch once they are this share of it: dropping copies the banks.
_FINISHED_SHARE = 0.25

_CONTEXTS: dict[str, tuple[type[PaddedContext], type[DecodeContext]]] = {
    "full": (PaddedContext, DecodeContext),
    "terminal": (TerminalPrefill, TerminalDecode),
}


def completion_seeds(seed: int, count: int) -> np.ndarray:
    """Seeds of a group's completions from the seed of its prompt; int64 [count]."""
    with np.errstate(over="ignore"):
        words = hash_uint64(np.asarray(seed, dtype=np.int64), np.asarray(0), count, stream=3)
    return (words >> np.uint64(1)).astype(np.int64)


def _pad_left(prompts: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    length = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), length, dtype=torch.long)
    mask = torch.zeros(len(prompts), length, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, length - len(prompt) :] = torch.tensor(prompt)
        mask[row, length - len(prompt) :] = 1
    return ids.to(device), mask.to(device)


def sample_groups(
    model: LoopedForCausalLM,
    prompts: list[list[int]],
    sampling: Sampling,
    seeds: list[int],
    on_group: Callable[[int, Rollout], None] | None = None,
    student: PrefillStudent | None = None,
    version: int = 0,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> list[Rollout]:
    """Sample `num_generations` completions of every prompt, in the prompts' order; see stream_groups.

    `on_group(index, rollout)` is called as soon as a group has ended.
    """
    groups: dict[int, Rollout] = {}
    for index, rollout in stream_groups(model, prompts, sampling, seeds, version, student, tokenizer):
        groups[index] = rollout
        if on_group is not None:
            on_group(index, rollout)
    return [groups[index] for index in range(len(prompts))]


@torch.no_grad()
def stream_groups(
    model: LoopedForCausalLM,
    prompts: list[list[int]],
    sampling: Sampling,
    seeds: list[int],
    version: int = 0,
    student: PrefillStudent | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Iterator[tuple[int, Rollout]]:
    """Sample `num_generations` completions of every prompt; yields (prompt's place, group) as each group ends.

    Every draw (initial states, tokens) is a function of the prompt's seed, the completion's number and the position,
    so what a group samples does not depend, but for rounding, on the groups decoded beside it; `batches` says which.

    Args:
        prompts: token ids, at least one each. seeds: one a prompt. student: reads the prompts in the recurrences'
            place; the cache must be terminal. tokenizer: reads completions where the sampling has stop strings.

    Raises:
        ValueError: an empty prompt; a student without terminal banks; stop strings without a tokenizer.
        UserError: logits that are not finite, so that no token has a probability.
    """
    if not all(prompts):
        raise ValueError(f"prompt {[bool(p) for p in prompts].index(False)} is empty")
    if student is not None and sampling.cache != "terminal":
        raise ValueError("a student's prefill leaves terminal banks only")
    if sampling.stop and tokenizer is None:
        raise ValueError(f"the stop strings {sampling.stop} need a tokenizer")
    text = CompletionText(tokenizer, sampling) if sampling.stop else None
    weight, limit = model.lm_head.weight, sampling.max_completion_length
    budget = token_budget(model.config, sampling, weight.dtype, weight.device)
    for some, parts in batches(list(map(len, prompts)), sampling.num_generations, limit, budget):
        chosen = [(prompts[i], seeds[i]) for i in some]
        sampled = [_sample_batch(model, chosen, sampling, part, version, student, text) for part in parts]
        if len(parts) == 1:
            yield from ((some.start + place, rollout) for place, rollout in sampled[0])
        else:  # of one prompt
            groups = [rollout for part in sampled for _, rollout in part]
            yield some.start, replace(groups[0], completions=[c for group in groups for c in group.completions])


def _sample_batch(
    model: LoopedForCausalLM,
    asked: list[tuple[list[int], int]],
    sampling: Sampling,
    members: range,
    version: int,
    student: PrefillStudent | None,
    text: CompletionText | None,
) -> Iterator[tuple[int, Rollout]]:
    """The completions `members` of the groups of some prompts, each with its seed, all decoded at once."""
    prompts, seeds = [prompt for prompt, _ in asked], [seed for _, seed in asked]
    core, device = model.model, model.lm_head.weight.device
    depth = sampling.depth or model.config.depth
    group, limit = len(members), sampling.max_completion_length

    ids, mask = _pad_left(prompts, device)
    prefill_kind, decode_kind = _CONTEXTS[sampling.cache]
    prefill = prefill_kind(model.config, mask, None, model.lm_head.weight.dtype, depth, record=True)
    prelude = core.prelude_forward(ids, prefill)
    if student is None:
        z0 = core.draw_initial_state(prefill.position_ids, torch.tensor(seeds), prelude)
        z, used = _endpoint(core, prelude, z0, prefill, sampling, mask.bool())
    else:
        z, used = student_endpoint(core, student)(prelude, None, prefill), torch.ones_like(mask)
    prompt_depths = [used[row, mask[row].bool()].cpu() for row in range(len(prompts))]
    logits = model.lm_head(core.coda_forward(z, prefill, prelude)[:, -1]).repeat_interleave(group, dim=0)
    prompt_states = [z[row, mask[row].bool()].cpu() for row in range(len(prompts))]

    row_seeds = torch.from_numpy(
        np.concatenate([completion_seeds(seed, members.stop)[members.start :] for seed in seeds])
    )
    lengths = mask.sum(-1).cpu().repeat_interleave(group)
    rows = len(row_seeds)
    tokens = torch.zeros(rows, limit, dtype=torch.long)
    logps = torch.zeros(rows, limit)
    states = z.new_empty(rows, limit, z.shape[-1], device="cpu") if sampling.save_states else None
    depths = torch.zeros(rows, limit, dtype=torch.int16)
    adaptive = sampling.tolerance is not None
    counts = torch.zeros(rows, dtype=torch.long)
    stopped = torch.zeros(rows, dtype=torch.bool)
    eos = torch.tensor(sampling.eos_token_ids, dtype=torch.long)

    def completion(row: int) -> Completion:
        count = int(counts[row])
        saved = states[row, : max(count - 1, 0)] if states is not None else torch.zeros(0, z.shape[-1])
        return Completion(
            token_ids=tokens[row, :count].numpy().copy(),
            logps=logps[row, :count].numpy().copy(),
            states=to_numpy(saved),
            depth=depth,
            finish_reason="stop" if stopped[row] else "length",
            seed=int(row_seeds[row]),
            depths=depths[row, : max(count - 1, 0)].numpy().copy() if adaptive else None,
        )

    def rollout(i: int) -> Rollout:
        return Rollout(
            prompt_ids=np.asarray(prompts[i], dtype=np.int64),
            prompt_states=to_numpy(prompt_states[i] if sampling.save_states else prompt_states[i][:0]),
            completions=[completion(i * group + j) for j in range(group)],
            seed=seeds[i],
            version=version,
            prompt_depths=prompt_depths[i].short().numpy() if adaptive else None,
        )

    context = decode_kind(prefill, mask, group, limit)
    batch = torch.arange(rows)  # which row each batch entry is
    yielded = torch.zeros(len(prompts), dtype=torch.bool)
    for t in range(limit):
        drawn, drawn_logps = draw(logits, sampling, uniforms(row_seeds[batch], torch.full_like(batch, t)))
        drawn, drawn_logps = drawn.cpu(), drawn_logps.cpu()
        running = ~stopped[batch]
        if not drawn_logps[running].isfinite().all():
            raise UserError(_not_finite(logits, running, sampling.temperature, version, t))
        live = batch[running]
        tokens[live, t], logps[live, t], counts[live] = drawn[running], drawn_logps[running], t + 1
        stopped[live] = torch.isin(drawn[running], eos)
        if text is not None:
            for row, token in zip(live.tolist(), drawn[running].tolist(), strict=True):
                if text.may_stop(token) and text.stops(tokens[row, max(0, t + 1 - text.window) : t + 1].tolist()):
                    stopped[row] = True
        ended = stopped.view(-1, group).all(-1) if t < limit - 1 else torch.ones_like(yielded)
        for i in (ended & ~yielded).nonzero()[:, 0].tolist():
            yield i, rollout(i)
        yielded = ended
        if ended.all():
            return
        running = ~stopped[batch]
        if running.float().mean() <= 1.0 - _FINISHED_SHARE:
            kept = running.nonzero()[:, 0]
            context.keep(kept.to(device))
            batch, drawn, running = batch[kept], drawn[kept], running[kept]
        positions = (lengths[batch] + t)[:, None]
        step = context.step(positions.to(device))
        prelude = core.prelude_forward(drawn[:, None].to(device), step)
        z0 = core.draw_initial_state(positions, row_seeds[batch], prelude)
        z, used = _endpoint(core, prelude, z0, step, sampling, running[:, None].to(device))
        depths[batch[running], t] = used[:, 0].cpu()[running].short()
        logits = model.lm_head(core.coda_forward(z, step, prelude)[:, -1])
        if states is not None:
            states[batch[running], t] = z[:, 0].cpu()[running]


def _not_finite(logits: Tensor, running: Tensor, temperature: float, version: int, t: int) -> str:
    """Why a token that was drawn has no probability: of the model's logits, or of the temperature."""
    if logits[running.to(logits.device)].isfinite().all():
        return f"rollout.temperature: logits divided by {temperature:g} are not finite; raise it (0 is greedy, in eval)"
    weights = f"the weights of step {version}" if version else "this model"
    return (
        f"the logits of {weights} are NaN or infinite at token {t + 1} of a completion, so nothing can be sampled: "
        "go on from an earlier checkpoint or another model; lower optim.learning_rate if training led here"
    )


def _endpoint(
    core: LoopedModel, prelude: PreludeOutput, z0: Tensor, context: Context, sampling: Sampling, recurs: Tensor
) -> tuple[Tensor, Tensor]:
    """z^R and the recurrences that each token used, int64 [B, T]."""
    if sampling.tolerance is None:
        return core.endpoint(prelude, z0, context), torch.full(recurs.shape, context.depth, device=recurs.device)
    return adaptive_endpoint(core, prelude, z0, context, sampling.tolerance, sampling.min_depth, recurs)


def to_numpy(x: Tensor) -> np.ndarray:
    """A copy that owns its memory; bfloat16, which numpy lacks, as its 16 bits in uint16."""
    if x.dtype == torch.bfloat16:
        return x.contiguous().view(torch.uint16).numpy().copy()
    return x.numpy().copy()


def to_torch(x: np.ndarray) -> Tensor:
    """Undo `to_numpy`: uint16 is bfloat16."""
    tensor = torch.from_numpy(np.array(x))
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
