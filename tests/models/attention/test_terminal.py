"""Terminal KV sharing against a token-by-token reference written out, in float64."""

import math

import pytest
import torch

from loop_rl.diagnosis.sharing import continuation_losses, sharing_loss
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.models.attention.decoding import DecodeContext
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.attention.terminal import TerminalDecode, TerminalPrefill, cache_floats

SIZES = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1)


def model_of(injection="ortho", **sizes):
    torch.manual_seed(0)
    config = LoopedConfig(**SIZES, head_dim=8, injection=injection, initializer_range=0.3, **sizes)
    return LoopedForCausalLM(config).double().eval()


class Written:
    """One row, one token at a time, with nothing of the model's contexts: attention over lists of keys and values."""

    def __init__(self, model, depth):
        self.model, self.depth, self.config = model, depth, model.config
        self.terminal = {}  # physical layer -> lists of keys and values, a token each

    def rotate(self, x, position):
        half = self.config.head_dim // 2
        angles = position / self.config.rope_theta ** (torch.arange(half, dtype=torch.float64) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def block(self, block, layer, x, position, keys, values):
        """x [width]; keys and values: lists of earlier tokens' [head_dim]; returns the output, own key and value."""
        attn, n = block.attn, block.attn_norm(x)
        q = self.rotate(attn.q_proj(n).view(2, 8), position)
        k, v = self.rotate(attn.k_proj(n), position), attn.v_proj(n)
        scores = torch.stack([q @ key for key in [*keys, k]], -1) / math.sqrt(8)
        mixed = scores.softmax(-1) @ torch.stack([*values, v])
        x = x + attn.o_proj(mixed.flatten())
        return x + block.mlp(block.mlp_norm(x)), k, v

    def token(self, token, position, z, tolerance=0.0):
        """Feeds one token under sharing; returns its logits and remembers its terminal banks."""
        parts, config = self.model.model, self.config
        own = {}

        def run(block, layer, x):
            keys, values = self.terminal.setdefault(layer, ([], []))
            x, k, v = self.block(block, layer, x, position, keys, values)
            own[layer] = (k, v)  # the last recurrence's stays
            return x

        x = parts.embed_tokens.weight[token]
        for layer, block in enumerate(parts.prelude):
            x = run(block, layer, x)
        injected = parts.injection.prepare(x)
        for recurrence in range(1, self.depth + 1):
            self.used = recurrence
            x = parts.injection.enter(z, injected)
            for index, block in enumerate(parts.core):
                x = run(block, config.prelude_layers + index, x)
            before, z = z, parts.injection.leave(x)
            if float((z - before).norm()) < tolerance * float(before.norm()):
                break
        x = z
        for index, block in enumerate(parts.coda):
            x = run(block, config.prelude_layers + config.core_layers + index, x)
        for layer, (k, v) in own.items():
            self.terminal[layer][0].append(k)
            self.terminal[layer][1].append(v)
        return self.model.lm_head(parts.norm(x))


def run(model, ids, context, positions):
    parts = model.model
    prelude = parts.prelude_forward(ids, context)
    z = parts.endpoint(prelude, parts.draw_initial_state(positions, None, prelude), context)
    return model.lm_head(parts.coda_forward(z, context, prelude))


@torch.no_grad()
@pytest.mark.parametrize("injection", ["ortho", "huginn_linear", "parcae"])
def test_decoding_is_the_written_reference(injection):
    """From a prompt of one token, whose full pass has no prefix: every later token decoded against terminal banks."""
    model, depth = model_of(injection), 3
    ids = torch.randint(0, 40, (1, 9), generator=torch.Generator().manual_seed(1))
    reference = Written(model, depth)
    prefill = TerminalPrefill(model.config, torch.ones(1, 1, dtype=torch.long), None, torch.float64, depth, record=True)
    got = [run(model, ids[:, :1], prefill, prefill.position_ids)[0, -1]]
    context = TerminalDecode(prefill, torch.ones(1, 1), 1, 8)
    for t in range(1, 9):
        position = torch.tensor([[t]])
        got.append(run(model, ids[:, t : t + 1], context.step(position), position)[0, -1])
    for t in range(9):
        z0 = model.model.draw_initial_state(torch.tensor([[t]]))[0, 0]
        expected = reference.token(int(ids[0, t]), t, z0)
        assert torch.allclose(got[t], expected, rtol=0, atol=1e-10), t


@torch.no_grad()
def test_the_second_pass_with_full_banks_is_the_undivided_pass():
    model = model_of()
    ids = torch.randint(0, 40, (3, 11), generator=torch.Generator().manual_seed(2))
    whole = PaddedContext(model.config, torch.ones_like(ids), None, torch.float64, 3)
    logits = run(model, ids, whole, whole.position_ids)
    expected = torch.nn.functional.cross_entropy(logits[:, 5:-1].transpose(1, 2), ids[:, 6:], reduction="none")
    assert torch.allclose(continuation_losses(model, ids, 3, terminal=False), expected, atol=1e-10)


@torch.no_grad()
def test_the_scoring_pass_is_decoding_where_nothing_stands_between():
    """The first token of the second half reads terminal banks only: there the parallel pass is the decode."""
    model, depth = model_of(), 4
    ids = torch.randint(0, 40, (2, 8), generator=torch.Generator().manual_seed(3))
    half = ids[:, :4]
    prefill = TerminalPrefill(model.config, torch.ones_like(half), None, torch.float64, depth, record=True)
    run(model, half, prefill, prefill.position_ids)
    context = TerminalDecode(prefill, torch.ones(2, 4), 1, 4)
    position = torch.full((2, 1), 4)
    logits = run(model, ids[:, 4:5], context.step(position), position)[:, 0]
    expected = torch.nn.functional.cross_entropy(logits, ids[:, 5], reduction="none")
    assert torch.allclose(continuation_losses(model, ids, depth, terminal=True)[:, 0], expected, atol=1e-10)


@torch.no_grad()
def test_at_depth_one_and_at_a_fixed_point_sharing_changes_nothing():
    """With one recurrence the terminal bank is the only one; far along a contraction all banks are alike."""
    model = model_of()
    ids = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(4))
    one = sharing_loss(model, ids, 1)
    assert one.terminal == pytest.approx(one.full, abs=1e-12)
    with torch.no_grad():
        for block in model.model.core:
            block.attn.o_proj.weight *= 0.1
            block.mlp.down_proj.weight *= 0.1
    settled, early = sharing_loss(model, ids, 60), sharing_loss(model, ids, 3)
    assert abs(early.penalty) > 1e-6
    # The second half's own tokens still pass through early states; only their prefix is settled from the start.
    assert abs(settled.penalty) < 1e-9


@torch.no_grad()
def test_banks_kept():
    model, depth = model_of(core_layers=2), 5
    ids = torch.randint(0, 40, (1, 6))
    full = PaddedContext(model.config, torch.ones_like(ids), None, torch.float64, depth, record=True)
    shared = TerminalPrefill(model.config, torch.ones_like(ids), None, torch.float64, depth, record=True)
    for context in (full, shared):
        run(model, ids, context, context.position_ids)
    assert (len(full.banks), len(shared.banks)) == (12, 4)
    held = [
        sum(k[:, :, :6].numel() + v[:, :, :6].numel() for k, v in kind(prefill, torch.ones(1, 6), 1, 2).banks.values())
        for kind, prefill in ((DecodeContext, full), (TerminalDecode, shared))
    ]
    assert held == [6 * cache_floats(model.config, depth, terminal) for terminal in (False, True)]
    assert held[0] == 3 * held[1]
