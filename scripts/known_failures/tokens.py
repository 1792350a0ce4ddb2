"""Tokens: what ends a completion, what is text, and where a prompt begins and ends."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from known_failures.seen import (
    Given,
    Seen,
    command,
    completions,
    embedded,
    ended,
    equal,
    recipe,
    reward,
    rows,
    saved,
    table,
    varied,
)
from loop_rl.data.prompts import prompt_ids
from loop_rl.learner.language import IGNORED
from loop_rl.models.loading import EMBEDDED, load_config, load_model
from loop_rl.recipe.sft import SftRecipe
from loop_rl.training.sft_data import sft_rows

_HEAD = "lm_head.weight"


def embedded_tokenizer() -> PreTrainedTokenizerBase:
    """The embedded model's, to be changed."""
    return AutoTokenizer.from_pretrained(EMBEDDED, config=load_config("embedded"))


def all_end_tokens(given: Given) -> Iterator[Seen]:
    """training ends completions at each of the ids, as eval does"""
    ends = given["generation_config.json"]["eos_token_id"]

    def other_end(tensors: dict[str, torch.Tensor]) -> None:
        """What ended a completion with the first id ends it with the second one."""
        head = tensors[_HEAD]
        head[ends] = head[ends[::-1]].clone()

    for name, generation, config in (
        ("in generation_config.json", {"eos_token_id": ends}, {}),
        ("the second one there alone", {"eos_token_id": ends[1]}, {}),
        ("in config.json", {}, {"eos_token_id": ends}),
    ):
        folder = embedded(f"model_{len(name)}", generation, other_end, **config)
        about = {"model": {"path": str(folder)}, "data": {"train_size": 8, "eval_size": 8}}
        file = recipe(
            f"ends_{len(name)}", **about, rollout={"max_completion_length": 48}, reward=varied(f"e{len(name)}")
        )
        yield ended(f"train, ends {name}", command("train", file))
        run = f"runs/ends_{len(name)}"
        finished = [one["finish_reason"] for one in table(Path(run, rows(run, "evals.jsonl")[0]["file"]))]
        yield Seen(f"finish reasons in training, ends {name}", "mostly stop", finished, finished.count("stop") > 4)
        said = command(
            "eval",
            str(folder),
            "--samples",
            "1",
            "--size",
            "8",
            "--out",
            "measured",
            "--format",
            "json",
            "--set",
            "rollout.max_completion_length=48",
            f"reward.name=e{len(name)}:f",
        )
        yield ended(f"eval, ends {name}", said)
        measured = json.loads(said.text[said.text.index("[") :])[-1]
        yield equal(f"eval beside training, ends {name}", _metrics(rows(run, "evals.jsonl")[0]), _metrics(measured))


def _metrics(row: dict) -> dict:
    return {name: row[name] for name in ("questions", "pass@1", "reward") if name in row}


def generation_settings(given: Given) -> Iterator[Seen]:
    """a checkpoint keeps the starting model's generation_config.json"""
    settings = given["model_folder/generation_config.json"]
    folder = embedded("start", settings)
    file = recipe("kept", model={"path": str(folder)}, reward=varied("kept_reward"))
    yield ended("train", command("train", file))
    again = recipe("again", model={"path": "runs/kept"}, reward=varied("kept_reward"), lora={"r": 2})
    yield ended("train from the run, with LoRA", command("train", again))
    yield ended("convert", command("convert", "runs/kept", "converted"))
    for place in (saved("runs/kept", 2), saved("runs/again", 2), Path("converted")):
        found = json.loads((place / "generation_config.json").read_text())
        yield equal(str(place), settings, {name: found.get(name) for name in settings})


def special_tokens_in_text(given: Given) -> Iterator[Seen]:
    """a special token that is part of an answer reaches the reward"""
    folder = embedded("model")
    tokenizer = embedded_tokenizer()
    # these stand for a tag that was added as a special token: the model writes them
    tokenizer.add_special_tokens({"additional_special_tokens": ["####", "7"]})
    tokenizer.save_pretrained(folder)
    ids = tokenizer.convert_tokens_to_ids(["####", "7"])
    code = (
        "def f(completions, completion_ids, **columns):\n"
        f"    return [sum((text.count(tag) > 0) == (id in ids) for tag, id in zip(('####', '7'), {ids})) / 2\n"
        "            for text, ids in zip(completions, completion_ids)]"
    )
    file = recipe(model={"path": str(folder)}, reward=reward(code, "tags"), rollout={"max_completion_length": 24})
    yield ended("train", command("train", file))
    yield equal("share of tags among the tokens that the text has", 1.0, rows("runs/small")[0]["reward"])
    texts = [one["completion"] for one in completions("runs/small", 1)]
    yield Seen(
        "completions", "some with ####", sum("####" in text for text in texts), any("####" in text for text in texts)
    )
    silent = [text for text in texts if any(name in text for name in ("<eos>", "<pad>", tokenizer.eos_token))]
    yield equal("completions that show their end token", [], silent)


def one_beginning(given: Given) -> Iterator[Seen]:
    """one beginning token and no end token in a prompt"""
    bos, eos = embedded_tokenizer().bos_token, embedded_tokenizer().eos_token
    text = "Question: 3 + 4\nAnswer:"
    for name, single, text_of in (
        ("<bos> in front, template with one", f"{bos} $A", f"{bos}{text}"),
        ("<bos> in front, template without", f"{bos} $A", text),
        ("<bos> in front, template with two", f"{bos} $A", f"{bos}{bos}{text}"),
        ("<eos> behind", f"$A {eos}", text),
        ("both, template with one", f"{bos} $A {eos}", f"{bos}{text}"),
    ):
        tokenizer = embedded_tokenizer()
        special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in (bos, eos)]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=special)
        ids, plain = prompt_ids(tokenizer, text_of), tokenizer(text, add_special_tokens=False).input_ids
        wanted = [tokenizer.bos_token_id, *plain] if bos in single or bos in text_of else plain
        yield equal(f"prompt, {name}", wanted, ids)
        if text_of == text:
            folder = embedded(f"model_{len(name)}")
            tokenizer.save_pretrained(folder)
            [row] = _sft_rows(folder, 1)
            front = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label == IGNORED]
            yield equal(f"end tokens in an sft prompt, {name}", 0, front.count(tokenizer.eos_token_id))


def _sft_rows(folder: Path, count: int, **data: object) -> list[dict]:
    made = SftRecipe.model_validate({"model": {"path": str(folder)}, "data": {"train_size": count, **data}})
    tokenizer = load_model(str(folder))[1]
    return list(sft_rows(made.data, tokenizer))


def end_token_is_learned(given: Given) -> Iterator[Seen]:
    """the trained part ends with one end token"""
    template, [user, assistant] = given["chat_template"], given["row"]["messages"]
    row = {"question": user["content"], "answer": assistant["content"]}
    Path("chat.jsonl").write_text("".join(json.dumps({**row, "question": f"{n}+2?"}) + "\n" for n in range(20)))
    with_end = template.replace("\\n{% endfor %}", "{{ eos_token }}\\n{% endfor %}")
    for name, one in (("without an end", template), ("with one", with_end)):
        folder, tokenizer = embedded(f"model_{len(name)}"), embedded_tokenizer()
        tokenizer.chat_template = one.replace("\\n", "\n")
        tokenizer.save_pretrained(folder)
        for found in _sft_rows(folder, 3, name="chat.jsonl", chat=True):
            trained = [label for label in found["labels"] if label != IGNORED]
            yield equal(f"end tokens learned, template {name}", 1, trained.count(tokenizer.eos_token_id))


COLLECTED = {
    "rl-02": all_end_tokens,
    "rl-03": generation_settings,
    "rl-04": special_tokens_in_text,
    "rl-09": one_beginning,
    "rl-10": end_token_is_learned,
}
