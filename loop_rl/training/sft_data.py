"""Rows of supervised fine-tuning: token ids, and labels only where a loss is taken."""

import json
import logging
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from loop_rl.data import default_reward, load_dataset
from loop_rl.data.corpus import load_corpus
from loop_rl.data.examples import Example
from loop_rl.data.prompts import prompt_ids
from loop_rl.errors import UserError
from loop_rl.learner.language import IGNORED
from loop_rl.recipe.sft import SftDataSection

logger = logging.getLogger(__name__)


def sft_rows(data: SftDataSection, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """`input_ids` and `labels` (not shifted) of at most data.length tokens per row, in a seeded order.

    Text is one stream cut into rows, all of which counts. Of questions and answers only the answer and its end token
    count, which is appended where a chat template writes none; prompt and answer are tokenized apart, as in RL.

    Raises:
        UserError: as `load_dataset` and `load_corpus`; nothing to learn from; no chat template where one is asked for.
    """
    if tokenizer.eos_token_id is None:
        raise UserError("model.path: the tokenizer has no end-of-sequence token (eos_token)")
    if is_text(data):
        corpus = load_corpus(data.name, tokenizer, data.length, 1, "all", data.seed)
        ids, labels = corpus.next_rows(corpus.documents)
        return Dataset.from_dict({"input_ids": ids.tolist(), "labels": labels.tolist()})
    if default_reward(data.name) == "mbpp_plus":
        raise UserError(f"data.name: {data.name} has tests but no programs to learn from; name a set with answers")
    examples = load_dataset(data, reward="unscored").train  # answers are learned here: any will do
    if not examples:
        raise UserError(f"data.name: {data.name} has no training questions (or data.train_size is 0); name another set")
    if data.chat and tokenizer.chat_template is None:
        raise UserError("data.chat: the model's tokenizer has no chat template; set it to false")
    pairs = [_pair(example, tokenizer, data.chat) for example in examples]
    unended = [answer for _, answer in pairs if tokenizer.eos_token_id not in answer]
    if unended:  # a model that never sees its end token after an answer never learns to stop
        logger.warning(
            "data.chat: the chat template ends %d of %d answers without the end token (%s); it is appended",
            len(unended),
            len(pairs),
            tokenizer.eos_token,
        )
        for answer in unended:
            answer.append(tokenizer.eos_token_id)
    fitting = [(prompt, answer) for prompt, answer in pairs if len(prompt) + len(answer) <= data.length]
    if not fitting:
        raise UserError(f"no question with its answer fits data.length ({data.length} tokens); raise data.length")
    if len(fitting) < len(pairs):
        logger.warning(
            "%d of %d rows are left out: more than %d tokens", len(pairs) - len(fitting), len(pairs), data.length
        )
    return Dataset.from_dict(
        {
            "input_ids": [prompt + answer for prompt, answer in fitting],
            "labels": [[IGNORED] * len(prompt) + answer for prompt, answer in fitting],
        }
    )


def is_text(data: SftDataSection) -> bool:
    """Whether the name is a file of plain text: .txt, or .jsonl whose first row has text and no question."""
    path = Path(data.name)
    if path.suffix != ".jsonl" or data.columns or not path.is_file():
        return path.suffix == ".txt"
    with path.open(encoding="utf-8", errors="replace") as file:
        line = next((line for line in file if line.strip()), "")
    try:
        row: Any = json.loads(line)
    except ValueError:
        return False  # reading it as questions says what is wrong
    return isinstance(row, dict) and "text" in row and "question" not in row


def _pair(example: Example, tokenizer: PreTrainedTokenizerBase, chat: bool) -> tuple[list[int], list[int]]:
    """Tokens of the prompt, and of the answer with its end token."""
    if chat:
        return _chat_pair(example, tokenizer)
    space = "" if example.prompt[-1:].isspace() else " "
    answer = tokenizer(f"{space}{example.answer}", add_special_tokens=False).input_ids
    return prompt_ids(tokenizer, example.prompt), [*answer, tokenizer.eos_token_id]


def _chat_pair(example: Example, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The prompt as a user's message and the answer as the assistant's, with what the template writes after it."""
    messages = [{"role": "user", "content": example.prompt}, {"role": "assistant", "content": example.answer}]
    prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=True)["input_ids"]
    whole = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
    if whole[: len(prompt)] != prompt:
        raise UserError(
            "data.chat: the tokenizer's chat template does not begin a conversation as it begins its prompt; set it to "
            "false"
        )
    return prompt, whole[len(prompt) :]
