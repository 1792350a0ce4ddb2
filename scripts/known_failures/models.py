"""Checkpoints and configs: what is loaded, what is saved, and how a model generates."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import DynamicCache, StaticCache

from known_failures.seen import Given, Seen, command, embedded, ended, equal, near, recipe, refused, saved, varied
from known_failures.tokens import embedded_tokenizer
from loop_rl.errors import UserError
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.families import read_config
from loop_rl.models.generation import end_tokens, read_generation_config
from loop_rl.models.loading import load_config, load_model

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_HUGINN = {
    "model_type": "huginn_raven",
    "n_embd": 32,
    "n_heads": 4,
    "head_dim": 8,
    "intermediate_size": 48,
    "n_layers_in_prelude": 1,
    "n_layers_in_recurrent_block": 2,
    "n_layers_in_coda": 1,
    "mean_recurrence": 4,
    "block_size": 512,
    "padded_vocab_size": 60,
    "norm_eps": 1e-6,
    "init_values": {"std": 0.1, "embed_scale": 6.0},
    "tie_embeddings": False,
}
_OURO = {
    "model_type": "ouro",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "total_ut_steps": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "vocab_size": 60,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def _random(raw: Given, folder: str) -> LoopedForCausalLM:
    """A model of a family's config.json, with weights that its sizes alone decide."""
    Path(folder).mkdir()
    Path(folder, "config.json").write_text(json.dumps(raw))
    torch.manual_seed(0)
    return LoopedForCausalLM(read_config(folder, with_weights=False)).eval()


def cached_decoding(given: Given) -> Iterator[Seen]:
    """cached decoding equals recomputing at every depth, by either name of the cache"""
    ids = torch.randint(3, 60, (2, given["steps"]), generator=torch.Generator().manual_seed(0))
    for name, model in (("ouro", _random(_OURO, "ouro")), ("embedded", load_model("embedded")[0])):
        for depth in (1, 2, 4, 8):
            with torch.no_grad():
                full = model(ids, depth=depth).logits
                for keyword in ("cache", "past_key_values"):
                    kept, steps = DynamicCache(), []
                    for column in range(ids.shape[1]):
                        out = model(ids[:, column : column + 1], depth=depth, use_cache=True, **{keyword: kept})
                        steps.append(out.logits)
                    apart = float((torch.cat(steps, 1) - full).abs().max() / full.abs().max())
                    yield near(f"{name}, depth {depth}, {keyword}=: largest difference", 0.0, apart, 1e-4)
    for keyword in ({"num_steps": 3}, {"past_key_value": None, "depht": 3}):
        try:
            model(ids, **keyword)
            yield Seen(f"{keyword}", "refused", "taken", False)
        except TypeError as error:
            yield Seen(f"{keyword}", "refused", str(error), True)


def scaled_rope(given: Given) -> Iterator[Seen]:
    """the same logits as with the older keys"""
    newer = given["config.json"]["rope_parameters"] | {"original_max_position_embeddings": 32}
    scaling = {key: value for key, value in newer.items() if key != "rope_theta"}
    theta = newer["rope_theta"]
    ids = torch.arange(3, 43)[None]
    for family, raw, key in (("huginn", _HUGINN, "rope_base"), ("ouro", _OURO, "rope_theta")):
        bare = {name: value for name, value in raw.items() if name != "rope_theta"}
        logits = {}
        for name, keys in (
            ("older keys", {"rope_theta": theta, "rope_scaling": scaling}),
            ("rope_parameters alone", {"rope_parameters": newer}),
            (f"{key} too", {key: theta, "rope_parameters": newer}),
            ("no scaling", {"rope_theta": theta}),
        ):
            with torch.no_grad():
                logits[name] = _random({**bare, **keys}, f"{family} {name}")(ids).logits
        for name in list(logits)[1:3]:
            yield near(f"{family}, {name}", 0.0, float((logits[name] - logits["older keys"]).abs().max()), 0.0)
        apart = (logits["no scaling"] - logits["older keys"]).abs().max()
        scaled = float(apart / logits["older keys"].abs().max())
        yield Seen(f"{family}, what the scaling changes", "> 1e-4", scaled, scaled > 1e-4)
        (Path(family) / "other").mkdir(parents=True)
        other = {**bare, "rope_theta": theta, "rope_parameters": {**newer, "rope_type": "yarn"}}
        (Path(family) / "other" / "config.json").write_text(json.dumps(other))
        yield refused(f"{family}, yarn", command("inspect", f"{family}/other/config.json"), "yarn", "llama3")


def generate_with_caches(given: Given) -> Iterator[Seen]:
    """the same greedy text, or a refusal"""
    model, tokenizer = load_model("embedded")
    ids = tokenizer("Question: 3 + 4\nAnswer:", return_tensors="pt").input_ids
    settings = {"max_new_tokens": 12, "do_sample": False}
    greedy = model.generate(ids, **settings)
    for call in given["calls"]:
        keywords = {one.arg: ast.literal_eval(one.value) for one in ast.parse(call, mode="eval").body.keywords}
        several = max(keywords.get("num_beams", 1), keywords.get("num_return_sequences", 1))
        plain = {"num_beams": several, **settings, **({} if several == 1 else {"use_cache": False})}
        try:
            wanted = (
                greedy
                if several == 1
                else model.generate(ids, **plain, **{k: v for k, v in keywords.items() if k != "num_beams"})
            )
            found = model.generate(ids, **{**settings, "num_beams": several, **keywords})
            yield Seen(call, "the text without a cache", found.tolist()[0], torch.equal(found, wanted))
        except UserError as error:
            yield Seen(call, "refused", str(error), "DynamicCache" in str(error))
    try:
        model(ids, cache=StaticCache(config=model.config, max_cache_len=40))
        yield Seen("a StaticCache in a forward pass", "refused", "taken", False)
    except UserError as error:
        yield Seen("a StaticCache in a forward pass", "refused", str(error), True)


def larger_tokenizer(given: Given) -> Iterator[Seen]:
    """refused by every command, with both sizes"""
    folder = embedded("model")
    tokenizer = embedded_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>"]})
    tokenizer.save_pretrained(folder)
    last, size = str(len(tokenizer) - 1), str(load_config(str(folder)).vocab_size)
    file = recipe(model={"path": str(folder)}, data={"template": "<think>{question}"}, rollout={"workers": 1})
    Path("sft.yaml").write_text(f"prior: {{}}\nmodel: {{path: {folder}}}\n")
    for words in (
        ("train", file),
        ("train", file, "--dry-run"),
        ("eval", str(folder), "--size", "1"),
        ("sft", "sft.yaml"),
        ("inspect", str(folder)),
    ):
        yield refused(" ".join(words), command(*words), last, f"{size} rows")


def tied_heads(given: Given) -> Iterator[Seen]:
    """file and flag that disagree are refused; those that agree give the same logits"""
    original, tokenizer = load_model("embedded")
    ids = tokenizer("Question: 3 + 4\nAnswer:", return_tensors="pt").input_ids

    def without(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[_HEAD]

    def same(tensors: dict[str, torch.Tensor]) -> None:
        tensors[_HEAD] = tensors[_EMBEDDING].clone()

    for name, config, change, words in (
        ("tie=true, another head", {"tie_word_embeddings": True}, None, ("ties the head", "differs")),
        ("tie=false, no head", {"tie_word_embeddings": False}, without, ("missing keys", _HEAD)),
        ("no key, no head", {"tie_word_embeddings": None}, without, ("missing keys", _HEAD)),
    ):
        folder = str(embedded(name.replace(" ", "_"), None, change, **config))
        file = recipe(name.replace(" ", "_"), model={"path": folder})
        for command_words in (("train", file), ("eval", folder, "--size", "1")):
            yield refused(f"{command_words[0]}, {name}", command(*command_words), *words)
    with torch.no_grad():
        wanted = original(ids).logits
        absent, _ = load_model(str(embedded("absent", None, None, tie_word_embeddings=None)))
        yield equal("no key, a head: its logits", True, torch.equal(absent(ids).logits, wanted))
        original.lm_head.weight.copy_(original.model.embed_tokens.weight)
        wanted = original(ids).logits
        for name, change in (("equal", same), ("absent", without)):
            tied, _ = load_model(str(embedded(f"tied_{name}", None, change, tie_word_embeddings=True)))
            yield equal(f"tie=true, head {name}: logits of the embedding", True, torch.equal(tied(ids).logits, wanted))


def trained_depth(given: Given) -> Iterator[Seen]:
    """every command uses the depth that was trained"""
    depth = given["recipe"]["model"]["depth"]
    yield ended("train", command("train", recipe("deep", model={"depth": depth}, reward=varied("deep_reward"))))
    model = str(saved("runs/deep", 2))
    for lora, name in ((None, "next"), ({"r": 2}, "next_lora")):
        file = recipe(name, model={"path": "runs/deep"}, reward=varied("deep_reward"), lora=lora)
        yield ended(f"train from the run ({name})", command("train", file))
    yield ended("convert", command("convert", "runs/deep", "converted"))
    for place in (model, str(saved("runs/next", 2)), str(saved("runs/next_lora", 2)), "converted"):
        yield equal(f"config.json of {place}", depth, json.loads(Path(place, "config.json").read_text())["depth"])
        yield equal(
            f"inspect {place}", depth, json.loads(command("inspect", place, "--format", "json").text)["layout"]["depth"]
        )
    for target in ("runs/deep", model, "converted"):
        said = command("eval", target, "--size", "1", "--samples", "1", "--out", f"{target}_eval", "--format", "json")
        yield equal(f"eval {target}", depth, json.loads(said.text[said.text.index("[") :])[-1]["depth"])


def named_ends(given: Given) -> Iterator[Seen]:
    """end tokens are those that the checkpoint names, and its chat template's"""
    base, generation = given["ouro base config.json"], given["generation_config.json"]
    for number, (config, file, wanted) in enumerate(
        [
            (base, generation, (0, 2)),
            (base, None, (0, 2)),
            ({"bos_token_id": 1, "eos_token_id": 7}, {"eos_token_id": [7, 9]}, (2, 7, 9)),
            ({"bos_token_id": 1, "eos_token_id": [7, 2]}, None, (2, 7)),
        ]
    ):
        folder = Path(f"ouro_{number}")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**_OURO, **config}))
        if file is not None:
            (folder / "generation_config.json").write_text(json.dumps(file))
        read = read_config(folder, with_weights=False)
        yield equal(f"{config}, {file}", wanted, end_tokens(read, read_generation_config(folder, read), None))


COLLECTED = {
    "ckpt-02": cached_decoding,
    "ckpt-03": scaled_rope,
    "ckpt-04": generate_with_caches,
    "ckpt-06": larger_tokenizer,
    "ckpt-07": tied_heads,
    "ckpt-08": trained_depth,
    "ckpt-09": named_ends,
}
