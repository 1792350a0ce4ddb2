"""A tokenizer, sampling settings and completions that need no model."""

import dataclasses
from types import SimpleNamespace

from loop_rl.data import Example


class Characters:
    """A tokenizer of one id a character."""

    bos_token_id = eos_token_id = None

    def __call__(self, text, add_special_tokens=True):
        if isinstance(text, str):
            return SimpleNamespace(input_ids=list(map(ord, text)))
        return SimpleNamespace(input_ids=[list(map(ord, one)) for one in text])

    def decode(self, row, skip_special_tokens):
        assert not skip_special_tokens
        return "".join(map(chr, row))


@dataclasses.dataclass(frozen=True)
class Settings:
    num_generations: int
    temperature: float = 1.0
    save_states: bool = True
    eos_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()


def completion(text, reason="stop"):
    ids = [ord(character) for character in text]
    return SimpleNamespace(token_ids=ids, finish_reason=reason, seed=len(text), mean_depth=len(text) / 2)


def generator(answers, calls=None):
    """Generates `answers[prompt]`: a list of completions each; the last prompt's first."""

    def generate(prompts, sampling, seeds, on_group):
        assert not sampling.save_states
        if calls is not None:
            calls.extend(zip(prompts, seeds, strict=True))
        groups = [SimpleNamespace(completions=answers["".join(map(chr, prompt))]) for prompt in prompts]
        for index in reversed(range(len(groups))):
            on_group(index, groups[index])
        return groups

    return generate


EXAMPLES = [Example("one", "#### 1", 7), Example("two", "#### 2", 3), Example("odd", "no number", 5)]
ANSWERS = {
    "one": [completion(" #### 1")] * 2 + [completion(" #### 9")] * 6,
    "two": [completion(" #### 5")] * 7 + [completion(" 2", "length")],
    "odd": [completion(" #### 3")] * 8,
}
