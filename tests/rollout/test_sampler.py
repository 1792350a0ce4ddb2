"""Sampling against plain forward passes, row by row."""

import dataclasses

import numpy as np
import pytest
import torch

from loop_rl.errors import UserError
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.rollout.sampler import sample_groups, stream_groups
from loop_rl.rollout.sampling import Sampling, draw, truncate
from tests.tiny import PROMPTS, tiny_model, tiny_rollouts


def plain_pass(model: LoopedForCausalLM, rollout, completion) -> tuple[torch.Tensor, torch.Tensor]:
    """Endpoint states and logits of one row alone, no cache, from its seeds."""
    fed = torch.tensor([*rollout.prompt_ids, *completion.token_ids[:-1]])[None]
    seeds = torch.full(fed.shape, completion.seed)
    seeds[:, : len(rollout.prompt_ids)] = rollout.seed
    context = PaddedContext(model.config, torch.ones_like(fed), None, model.lm_head.weight.dtype, completion.depth)
    with torch.no_grad():
        e = model.model.prelude_forward(fed, context)
        z = model.model.draw_initial_state(context.position_ids, seeds)
        for _ in range(completion.depth):
            z = model.model.recur(z, e, context)
        return z[0], model.lm_head(model.model.coda_forward(z, context))[0]


@pytest.mark.parametrize("injection", ["ortho", "deq_qkv", "huginn_linear", "parcae", "parcae_no_norm"])
@pytest.mark.parametrize("depth", [1, 5])
def test_cached_decoding_equals_a_plain_forward_pass(injection: str, depth: int) -> None:
    model = tiny_model(torch.float64, injection=injection)
    for rollout in tiny_rollouts(model, depth=depth, temperature=0.7):
        for completion in rollout.completions:
            z, logits = plain_pass(model, rollout, completion)
            prompt = len(rollout.prompt_ids)
            saved = np.concatenate((rollout.prompt_states, completion.states))
            np.testing.assert_allclose(saved, z, rtol=0, atol=1e-10)
            logps = torch.log_softmax(logits[prompt - 1 :] / 0.7, -1)
            picked = logps.gather(-1, torch.from_numpy(completion.token_ids)[:, None])[:, 0]
            np.testing.assert_allclose(completion.logps, picked, rtol=0, atol=1e-6)


def test_a_group_does_not_depend_on_its_batch() -> None:
    model = tiny_model(torch.float64)
    together = tiny_rollouts(model)
    settings = Sampling(4, 7, eos_token_ids=(2, 3, 4))
    for prompt, seed, rollout in zip(PROMPTS, (11, 12, 13), together, strict=True):
        (alone,) = sample_groups(model, [prompt], settings, [seed])
        for a, b in zip(alone.completions, rollout.completions, strict=True):
            np.testing.assert_array_equal(a.token_ids, b.token_ids)
            np.testing.assert_allclose(a.states, b.states, atol=1e-12)


def test_a_group_is_yielded_before_a_longer_one_is_sampled_on() -> None:
    model = tiny_model()
    settings = Sampling(2, 30, eos_token_ids=(2, 3, 4, 5, 6))
    lengths = [max(len(c.token_ids) for c in r.completions) for r in sample_groups(model, PROMPTS, settings, [1, 2, 3])]
    assert len(set(lengths)) == 3
    steps = 0

    def count(*_) -> None:
        nonlocal steps
        steps += 1

    hook = model.lm_head.register_forward_hook(count)
    for index, _ in stream_groups(model, PROMPTS, settings, [1, 2, 3]):
        assert steps == lengths[index]  # a pass of the model for each token of its longest completion
    hook.remove()


def test_rows_stop_by_themselves() -> None:
    completions = [c for r in tiny_rollouts(tiny_model(), group=32, length=9) for c in r.completions]
    lengths = {len(c.token_ids) for c in completions}
    assert len(lengths) > 3
    for completion in completions:
        ids = completion.token_ids
        assert not np.isin(ids[:-1], (2, 3, 4)).any()
        ended = ids[-1] in (2, 3, 4)
        assert completion.finish_reason == ("stop" if ended else "length")
        assert ended or len(ids) == 9
        assert len(completion.states) == len(ids) - 1


def test_greedy_sampling_equals_transformers_generate() -> None:
    # one seed everywhere, as generate has it
    model = tiny_model(torch.float64, initial_state_std=0.0)
    settings = Sampling(1, 12, temperature=0, eos_token_ids=())
    for rollout in sample_groups(model, PROMPTS, settings, [0, 0, 0]):
        ids = torch.from_numpy(rollout.prompt_ids)[None]
        expected = model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
        np.testing.assert_array_equal(rollout.completions[0].token_ids, expected[0, ids.shape[1] :])


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    n = 20_000
    uniform = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    tokens, logps = draw(logits.expand(n, -1), Sampling(1, 1, temperature=0.5), uniform)
    expected = torch.softmax(logits / 0.5, -1)
    torch.testing.assert_close(torch.bincount(tokens, minlength=4) / n, expected, atol=2e-4, rtol=0)
    torch.testing.assert_close(logps, expected.log()[tokens])


def test_temperature_divides_logits() -> None:
    _, logp = draw(torch.tensor([[2.0, 1.0, 0.0]]), Sampling(1, 1, temperature=0.5), torch.tensor([0.0]).double())
    assert logp.item() == pytest.approx(-0.142932, abs=1e-6)


def test_top_k_and_top_p_keep_the_likeliest() -> None:
    p = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    assert (truncate(p, 2, 1.0) > 0).tolist() == [[False, True, False, True]]
    assert (truncate(p, 0, 0.65) > 0).tolist() == [[False, True, False, True]]
    assert (truncate(p, 0, 0.71) > 0).tolist() == [[False, True, True, True]]
    assert (truncate(p, 0, 1e-9) > 0).tolist() == [[False, True, False, False]]
    assert truncate(p, 0, 1.0).equal(p)


def test_truncated_sampling_never_leaves_the_set_and_reports_full_probabilities() -> None:
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log().expand(1000, -1)
    uniform = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tokens, logps = draw(logits, Sampling(1, 1, top_k=2), uniform)
    assert set(tokens.tolist()) == {1, 3}
    torch.testing.assert_close(logps.exp(), torch.tensor([0.1, 0.4, 0.2, 0.3])[tokens])


def test_a_token_without_mass_is_never_drawn() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, -torch.inf]])
    almost_one = torch.tensor([1 - 2**-53], dtype=torch.float64)
    for scale in (0.3, 1.0, 1.7):
        tokens, logps = draw(logits * scale, Sampling(1, 1), almost_one)
        assert tokens.item() == 2 and logps.isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}, {"top_k": 3}, {"top_p": 0.5}, {"tolerance": 0.1}])
def test_logits_that_are_not_finite_are_refused(value: float, sampling: dict) -> None:
    model = tiny_model()
    model.lm_head.weight.data[7] = value
    with pytest.raises(UserError, match="the weights of step 5 are NaN or infinite at token 1 .*learning_rate"):
        list(stream_groups(model, PROMPTS, Sampling(2, 3, **sampling), [1, 2, 3], version=5))
    with pytest.raises(UserError, match="logits of this model"):
        sample_groups(model, PROMPTS, Sampling(2, 3, **sampling), [1, 2, 3])


def test_a_temperature_that_overflows_is_named() -> None:
    with pytest.raises(UserError, match="rollout.temperature"):
        sample_groups(tiny_model(), PROMPTS, Sampling(2, 3, temperature=1e-44), [1, 2, 3])


def test_a_row_that_has_ended_may_go_wrong_behind_its_end() -> None:
    """What is fed for it until it is dropped is nobody's: only rows that are sampled on must be finite."""
    model = tiny_model()
    settings = Sampling(8, 9, eos_token_ids=(2, 3, 4))
    expected = sample_groups(model, PROMPTS, settings, [1, 2, 3])
    model.model.embed_tokens.weight.data[2:5] = torch.nan
    for one, other in zip(expected, sample_groups(model, PROMPTS, settings, [1, 2, 3]), strict=True):
        for a, b in zip(one.completions, other.completions, strict=True):
            np.testing.assert_array_equal(a.token_ids, b.token_ids)


def test_states_can_be_left_out() -> None:
    rollout = sample_groups(tiny_model(), PROMPTS[:1], Sampling(2, 3, save_states=False), [0])[0]
    assert rollout.prompt_states.size == 0 and rollout.completions[0].states.size == 0


def test_empty_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        sample_groups(tiny_model(), [[1], []], Sampling(2, 3), [0, 1])


def test_sampling_leaves_the_global_generator_alone() -> None:
    model = tiny_model()
    before = torch.get_rng_state()
    tiny_rollouts(model)
    assert torch.get_rng_state().equal(before)


def test_top_p_shares_a_seed_with_plain_sampling() -> None:
    # a row's uniform number is its own: narrowing the distribution to the greedy token changes nothing else
    model = tiny_model()
    narrow = tiny_rollouts(model, top_p=1e-9)
    greedy = tiny_rollouts(model, temperature=0)
    for a, b in zip(narrow, greedy, strict=True):
        for x, y in zip(a.completions, b.completions, strict=True):
            np.testing.assert_array_equal(x.token_ids, y.token_ids)
    assert dataclasses.is_dataclass(narrow[0])
