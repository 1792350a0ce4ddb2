"""A text corpus as rows of tokens, in an order that can be resumed."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from loop_rl.data import arithmetic
from loop_rl.data.prompts import all_prompt_ids
from loop_rl.errors import UserError
from loop_rl.learner.language import IGNORED

logger = logging.getLogger(__name__)


class Corpus:
    """Documents packed into rows of `length` tokens.

    A row starts at the start of a document, as a prompt does in use, and is filled up with further documents; the last
    one is cut at the row's end. Every epoch visits all documents in another order, decided by (seed, epoch).
    """

    def __init__(self, documents: list[list[int]], answers_at: list[int], length: int, loss_on: str, seed: int) -> None:
        """documents: token ids; answers_at: the index in each at which the answer starts (0: all of it is text)."""
        fitting = [index for index, document in enumerate(documents) if len(document) <= length]
        if not fitting:
            raise UserError(f"no document of the corpus fits data.length ({length} tokens); raise data.length")
        if len(fitting) < len(documents):
            logger.warning("%d documents longer than %d tokens are left out", len(documents) - len(fitting), length)
        sizes = np.array([len(documents[index]) for index in fitting])
        self._ends = sizes.cumsum()
        self._starts = self._ends - sizes
        self._tokens = torch.from_numpy(np.concatenate([np.array(documents[i], dtype=np.int32) for i in fitting]))
        self._labels = self._tokens.clone()
        if loss_on == "answer":
            for start, index in zip(self._starts, fitting, strict=True):
                self._labels[start : start + answers_at[index]] = IGNORED
        self._length, self._seed = length, seed
        self._used = 0
        self._order_of: tuple[int, np.ndarray] = (-1, np.empty(0))

    @property
    def documents(self) -> int:
        return len(self._starts)

    def next_rows(self, count: int) -> tuple[Tensor, Tensor]:
        """Input ids and labels, both int64 [count, length]; labels are not shifted, IGNORED where no loss is taken."""
        rows = [self._next_row() for _ in range(count)]
        return torch.stack([ids for ids, _ in rows]).long(), torch.stack([labels for _, labels in rows]).long()

    def state_dict(self) -> dict[str, Any]:
        return {"used": self._used, "documents": self.documents}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises UserError when the corpus has changed since."""
        if state["documents"] != self.documents:
            raise UserError(
                f"the corpus has {self.documents} documents, the checkpoint's had {state['documents']}: "
                "the file of data.name has changed; start a new run"
            )
        self._used = state["used"]

    def _next_row(self) -> tuple[Tensor, Tensor]:
        spans, filled = [], 0
        while filled < self._length:
            document = self._next_document()
            start = int(self._starts[document])
            end = min(int(self._ends[document]), start + self._length - filled)
            spans.append(slice(start, end))
            filled += end - start
        return torch.cat([self._tokens[span] for span in spans]), torch.cat([self._labels[span] for span in spans])

    def _next_document(self) -> int:
        epoch, index = divmod(self._used, self.documents)
        if self._order_of[0] != epoch:
            self._order_of = (epoch, np.random.default_rng((self._seed, epoch)).permutation(self.documents))
        self._used += 1
        return int(self._order_of[1][index])


def load_corpus(
    name: str, tokenizer: PreTrainedTokenizerBase, length: int, problems: int, loss_on: str, seed: int
) -> Corpus:
    """`arithmetic`, a .txt file, or a .jsonl file with question and answer (or text) in every row.

    Questions and answers become the template that RL uses, "Question: {q}\\nAnswer:" then " {a}" and the end token, the
    two parts tokenized apart as a prompt and its completion are. Plain text is one stream cut into rows.
    Raises UserError for what cannot be read or is too short for one row.
    """
    if name == "arithmetic":
        pairs = [(row["question"], row["answer"]) for row in arithmetic.problems(problems, seed)]
        return _question_corpus(pairs, tokenizer, length, loss_on, seed)
    path = Path(name)
    if path.suffix not in (".txt", ".jsonl"):
        raise UserError(f"data.name is {name!r}: use arithmetic, or the path of a .txt or .jsonl file")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"data.name: cannot read {name}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"data.name: {name} is not UTF-8 text") from None
    if path.suffix == ".txt":
        return _text_corpus([text], tokenizer, length, loss_on, seed)
    rows = [_read_row(line, name, number) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if rows and all("text" in row for row in rows):
        return _text_corpus([row["text"] for row in rows], tokenizer, length, loss_on, seed)
    for number, row in enumerate(rows, 1):
        if not all(isinstance(row.get(key), str) for key in ("question", "answer")):
            raise UserError(f"{name}: row {number} lacks question and answer as strings (or all rows need text)")
    return _question_corpus([(row["question"], row["answer"]) for row in rows], tokenizer, length, loss_on, seed)


def _read_row(line: str, name: str, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{name}, line {number}: not JSON: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get("text", ""), str):
        raise UserError(f"{name}, line {number}: wanted an object with question and answer, or text, as strings")
    return row


def _question_corpus(
    pairs: list[tuple[str, str]], tokenizer: PreTrainedTokenizerBase, length: int, loss_on: str, seed: int
) -> Corpus:
    if not pairs:
        raise UserError("the corpus of data.name is empty")
    end = [_end_token(tokenizer)]
    prompts = all_prompt_ids(tokenizer, [f"Question: {question}\nAnswer:" for question, _ in pairs])
    answers = tokenizer([f" {answer}" for _, answer in pairs], add_special_tokens=False).input_ids
    documents = [prompt + answer + end for prompt, answer in zip(prompts, answers, strict=True)]
    return Corpus(documents, [len(prompt) for prompt in prompts], length, loss_on, seed)


def _text_corpus(texts: list[str], tokenizer: PreTrainedTokenizerBase, length: int, loss_on: str, seed: int) -> Corpus:
    if loss_on == "answer":
        raise UserError("data.loss_on is answer, but plain text has no answers: use all, or rows with question, answer")
    end = _end_token(tokenizer)
    stream = [token for ids in all_prompt_ids(tokenizer, texts) for token in (*ids, end)]
    rows = [stream[start : start + length] for start in range(0, len(stream) - length + 1, length)]
    if not rows:
        raise UserError(f"the corpus of data.name has {len(stream)} tokens, fewer than data.length ({length})")
    return Corpus(rows, [0] * len(rows), length, loss_on, seed)


def _end_token(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.eos_token_id is None:
        raise UserError("the tokenizer of data.tokenizer has no end-of-sequence token (eos_token)")
    return tokenizer.eos_token_id
