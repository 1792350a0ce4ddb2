"""A row gives the same logits alone, padded, cached, or decoded by a rollout."""

import pytest
import torch

from loop_rl.models.attention.decoding import DecodeContext
from loop_rl.models.attention.padded import PaddedContext
from tests.models.tiny_looped import INJECTIONS, tiny_model, tokens

EXACT = 1e-12
LENGTHS = (7, 4, 1)


def padded(rows, side: str, width: int):
    """(ids, mask) [rows, width], the pads filled with a token that would be noticed."""
    ids = torch.full((len(rows), width), 17)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        at = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[index, at], mask[index, at] = row, 1
    return ids, mask


@pytest.fixture(scope="module")
def rows():
    return [tokens(1, length, seed=length)[0] for length in LENGTHS]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("injection", INJECTIONS)
def test_a_row_alone_and_in_a_padded_batch(injection, side, rows):
    model = tiny_model(injection=injection)
    ids, mask = padded(rows, side, max(LENGTHS) + 2)
    with torch.no_grad():
        batch = model(ids, attention_mask=mask).logits
        for index, row in enumerate(rows):
            alone = model(row[None]).logits[0]
            torch.testing.assert_close(batch[index][mask[index].bool()], alone, rtol=0, atol=EXACT)
    assert batch.isfinite().all()


def test_holes_in_the_mask_are_as_if_cut_out(rows):
    model, row = tiny_model(), rows[0]
    kept = [0, 3, 4, 7, 9, 11, 12]
    ids = torch.full((2, 14), 17)
    mask = torch.zeros(2, 14, dtype=torch.long)
    ids[0, kept], mask[0, kept] = row, 1
    ids[1], mask[1] = tokens(1, 14)[0], 1
    with torch.no_grad():
        logits = model(ids, attention_mask=mask).logits
        torch.testing.assert_close(logits[0, kept], model(row[None]).logits[0], rtol=0, atol=EXACT)
        torch.testing.assert_close(logits[1], model(ids[1:]).logits[0], rtol=0, atol=EXACT)


def test_a_token_sees_no_later_token():
    model, ids = tiny_model(), tokens(1, 8)
    changed = ids.clone()
    changed[0, 5] = (ids[0, 5] - 2) % 28 + 3
    with torch.no_grad():
        before, after = model(ids).logits, model(changed).logits
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.isclose(before[:, 5:], after[:, 5:]).all(-1).any()


def test_positions_shift_logits_only_through_the_initial_state(rows):
    model = tiny_model()
    ids = rows[0][None]
    z0 = torch.randn(1, 7, 16, dtype=torch.float64)
    with torch.no_grad():
        here = model(ids, initial_state=z0).logits
        there = model(ids, initial_state=z0, position_ids=torch.arange(20, 27)[None]).logits
    torch.testing.assert_close(here, there, rtol=0, atol=1e-10)


@pytest.mark.parametrize("injection", INJECTIONS)
def test_cached_steps_equal_the_plain_forward(injection):
    model = tiny_model(injection=injection)
    ids, mask = padded([tokens(1, n, seed=n)[0] for n in (9, 6)], "left", 9)
    with torch.no_grad():
        plain = model(ids, attention_mask=mask).logits
        out = model(ids[:, :4], attention_mask=mask[:, :4], use_cache=True)
        pieces = [out.logits]
        for end in (5, 6, 9):  # one, one, three tokens
            start = out.cache.get_seq_length()
            out = model(ids[:, start:end], attention_mask=mask[:, :end], cache=out.cache, use_cache=True)
            pieces.append(out.logits)
    real = mask.bool()
    torch.testing.assert_close(torch.cat(pieces, dim=1)[real], plain[real], rtol=0, atol=1e-10)
    assert len(out.cache.layers) == model.config.bank_count(model.config.depth)


@pytest.mark.parametrize("depth", [1, 5])
def test_a_rollout_s_decoding_equals_the_plain_forward(depth):
    model, repeats, steps = tiny_model(prelude_layers=2), 3, 4
    prompts, prompt_mask = padded([tokens(1, n, seed=n)[0] for n in (5, 3)], "left", 6)
    sampled = tokens(2 * repeats, steps, seed=3)
    ids = torch.cat((prompts.repeat_interleave(repeats, 0), sampled), dim=1)
    mask = torch.cat((prompt_mask.repeat_interleave(repeats, 0), torch.ones_like(sampled)), dim=1)
    inner = model.model

    def through(input_ids, context):
        e = inner.prelude_forward(input_ids, context)
        z = inner.endpoint(e, inner.draw_initial_state(context.position_ids), context)
        return model.lm_head(inner.coda_forward(z, context))

    with torch.no_grad():
        plain = model(ids, attention_mask=mask, depth=depth).logits
        prefill = PaddedContext(model.config, prompt_mask, dtype=torch.float64, depth=depth, record=True)
        prompt_logits = through(prompts, prefill)
        context = DecodeContext(prefill, prompt_mask, repeats, capacity=steps)
        lengths = prompt_mask.sum(-1).repeat_interleave(repeats)
        kept = torch.arange(2 * repeats)
        for step in range(steps):
            if step == 2:  # two completions end here
                kept = torch.tensor([0, 2, 3, 5])
                context.keep(kept)
            logits = through(sampled[kept, step, None], context.step((lengths[kept] + step)[:, None]))
            torch.testing.assert_close(logits[:, 0], plain[kept, 6 + step], rtol=0, atol=1e-10)
    real = prompt_mask.bool()
    torch.testing.assert_close(prompt_logits[real], plain[::repeats, :6][real], rtol=0, atol=1e-10)


def test_banks_are_distinct_and_dense():
    model = tiny_model(prelude_layers=2, core_layers=3, coda_layers=2)
    context = PaddedContext(model.config, torch.ones(1, 2), depth=4)
    indices = [context.bank(layer, 0) for layer in (0, 1)]
    indices += [context.bank(2 + layer, recurrence) for recurrence in range(4) for layer in range(3)]
    indices += [context.bank(layer, 0) for layer in (5, 6)]
    assert indices == list(range(model.config.bank_count(4)))


@pytest.mark.parametrize("side", ["left", "right"])
def test_without_causality_a_token_sees_all_real_ones_of_its_row(side):
    """Against a softmax written out, on heads that are rotated already."""
    config = tiny_model().config
    _, mask = padded([tokens(1, length)[0] for length in LENGTHS], side, max(LENGTHS))
    context = PaddedContext(config, mask, dtype=torch.float64, causal=False)
    generator = torch.Generator().manual_seed(0)
    heads, groups = config.num_attention_heads, config.num_attention_heads // config.num_key_value_heads
    shape = (len(LENGTHS), heads, max(LENGTHS), config.head_dim)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    k, v = k[:, ::groups], v[:, ::groups]
    got = context.attend(0, 0, q, k, v)
    keys, values = (x.repeat_interleave(groups, dim=1) for x in (context.rotate(k), v))
    scores = context.rotate(q) @ keys.transpose(-1, -2) / config.head_dim**0.5
    for row, real in enumerate(mask.bool()):
        wanted = torch.softmax(scores[row][:, :, real], dim=-1) @ values[row][:, real]
        torch.testing.assert_close(got[row][:, real], wanted[:, real], rtol=0, atol=EXACT)
