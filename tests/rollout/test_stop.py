"""Stop strings: where they end a completion, whatever the tokens' boundaries and the batch, and what a reward sees."""

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from loop_rl.data import Example
from loop_rl.evaluation.sample import sample_and_submit
from loop_rl.models.loading import load_model
from loop_rl.reward.reward import RewardSpec
from loop_rl.reward.scorer import LocalScorer
from loop_rl.rollout import sampler
from loop_rl.rollout.sampler import sample_groups
from loop_rl.rollout.sampling import Sampling
from loop_rl.rollout.text import CompletionText
from tests.tiny import PROMPTS, tiny_model

# In the byte-level alphabet: a line break is Ċ, a blank Ġ, and é its two bytes.
PIECES = ["Ċ", "Q", ":", "ĊQ", "Q:", "ĊQ:", ":a", "aĊ", "xQ:", "Ã", "©", "Ã©", "Ġ", "ĠQ", "a", "b", "ĊĊ", "#", "7"]
SPECIAL = ["<pad>", "<bos>", "<eos>", "<end>", "<think>"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Of the tiny model's 40 tokens, with special ones first; a few ids past its end decode to nothing."""
    vocabulary = {piece: number for number, piece in enumerate([*SPECIAL, *PIECES])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")


@pytest.fixture(scope="module")
def embedded():
    return load_model("embedded")


def first_stop(ids: list[int], tokenizer: PreTrainedTokenizerFast, stop: tuple[str, ...]) -> int | None:
    """How many tokens it takes until the text has a stop string, by decoding every beginning."""
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode([token for token in ids[:count] if token > 3])
        if any(string in text for string in stop):
            return count
    return None


@pytest.mark.parametrize("stop", [("\nQ:",), ("é",), (" ", "é:"), ("\n\n", "aQ"), ("#",)])
def test_a_completion_ends_with_the_token_that_completes_a_stop_string(tokenizer, stop) -> None:
    """Each is the beginning of the one sampled without stop strings, cut where decoding every beginning says."""
    model = tiny_model(initializer_range=0.02)  # near uniform: every piece comes
    free = sample_groups(model, PROMPTS, Sampling(24, 20, eos_token_ids=(2, 3)), [4, 5, 6])
    settings = Sampling(24, 20, eos_token_ids=(2, 3), stop=stop)
    reader = CompletionText(tokenizer, settings)
    seen = {"stop string": 0, "end token": 0, "length": 0}
    for whole, group in zip(free, sample_groups(model, PROMPTS, settings, [4, 5, 6], tokenizer=tokenizer), strict=True):
        for before, after in zip(whole.completions, group.completions, strict=True):
            ids = before.token_ids.tolist()
            count = first_stop(ids, tokenizer, stop)
            kept = ids if count is None else ids[:count]
            assert after.token_ids.tolist() == kept
            assert len(after.logps) == len(kept) and len(after.states) == len(kept) - 1
            kind = "stop string" if count else "end token" if kept[-1] in (2, 3) else "length"
            assert after.finish_reason == ("length" if kind == "length" else "stop")
            seen[kind] += 1
            text = reader.text(kept)
            assert not any(string in text for string in stop)
            assert tokenizer.decode([token for token in kept if token > 3]).startswith(text)
    assert all(seen.values()), seen


def test_a_row_stops_alike_in_any_batch(tokenizer) -> None:
    model = tiny_model(initializer_range=0.02)
    settings = Sampling(6, 20, eos_token_ids=(2, 3), stop=("\nQ:", "é"))
    together = sample_groups(model, PROMPTS, settings, [4, 5, 6], tokenizer=tokenizer)
    for prompt, seed, group in zip(PROMPTS, (4, 5, 6), together, strict=True):
        (alone,) = sample_groups(model, [prompt], settings, [seed], tokenizer=tokenizer)
        for a, b in zip(alone.completions, group.completions, strict=True):
            np.testing.assert_array_equal(a.token_ids, b.token_ids)
            assert a.finish_reason == b.finish_reason


def test_only_tokens_that_may_complete_a_stop_string_are_decoded_with_what_stands_before(tokenizer) -> None:
    reader = CompletionText(tokenizer, Sampling(1, 1, stop=("\nQ:",)))
    may = {piece for number, piece in enumerate([*SPECIAL, *PIECES]) if reader.may_stop(number)}
    assert may == {":", "Q:", "ĊQ:", ":a", "xQ:", "Ã", "©"}  # a part of a character may be of any


def test_tokens_that_end_or_pad_say_nothing_and_other_special_tokens_are_text(tokenizer) -> None:
    reader = CompletionText(tokenizer, Sampling(1, 1, eos_token_ids=(2, 3)))
    think, a, seven = 4, len(SPECIAL) + PIECES.index("a"), len(SPECIAL) + PIECES.index("7")
    assert reader.text([1, think, a, 0, think, seven, 2]) == "<think>a<think>7"
    assert reader.text([seven, 3]) == "7"
    # An end token of the model that the sampling doesn't know is text like another.
    assert CompletionText(tokenizer, Sampling(1, 1)).text([seven, 3]) == "7<end>"


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="need a tokenizer"):
        sample_groups(tiny_model(), PROMPTS, Sampling(2, 3, stop=("a",)), [1, 2, 3])


def test_a_question_made_up_behind_the_answer_is_not_scored(monkeypatch, embedded) -> None:
    """A right answer, then another question with its own: the sampler ends before it, and the reward cuts it off."""
    model, tokenizer = embedded
    written = "3 + 4 = 7\n#### 7\n\nQuestion: Tom has 5 pens and buys 6. How many?\nAnswer: 5 + 6 = 11\n#### 11"
    script = tokenizer(written, add_special_tokens=False).input_ids
    step = iter(script)

    def scripted(logits, sampling, uniform):
        tokens, logps = draw(logits, sampling, uniform)
        return tokens.fill_(next(step)), logps.fill_(-1.0)

    draw = sampler.draw
    monkeypatch.setattr(sampler, "draw", scripted)
    spec = RewardSpec((("gsm8k", 1.0),))
    for stop in (("\nQuestion:",), ()):
        for gold, reward in (("7", 1.0), ("11", 0.0)):
            step = iter(script)
            sampling = Sampling(1, len(script), eos_token_ids=(2,), stop=stop)
            example = Example("Question: 3 + 4?\nAnswer:", f"#### {gold}", 0)
            with LocalScorer([spec]) as scorer:
                sampled = sample_and_submit(
                    lambda *given: sample_groups(model, *given, tokenizer=tokenizer),
                    tokenizer, scorer, spec, [example], sampling, [0],
                )  # fmt: skip
                assert scorer.gather(sampled.tickets)[0].rewards == [reward]
            (completion,) = sampled.rollouts[0].completions
            ids = completion.token_ids.tolist()
            if stop:
                assert tokenizer.decode(ids).endswith("Question:") and ids == script[: len(ids)]
                assert sampled.texts == [["3 + 4 = 7\n#### 7\n"]] and completion.finish_reason == "stop"
            else:
                assert ids == script and completion.finish_reason == "length"
