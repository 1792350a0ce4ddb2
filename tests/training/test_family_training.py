"""Two Dr. GRPO steps by reuse and Neumann-4 on every family, all weights or adapters; what merged adapters are."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from loop_rl.errors import UserError
from loop_rl.learner.batch import collate, samples_of
from loop_rl.learner.objective import group_advantages
from loop_rl.learner.scoring import score
from loop_rl.models.adapters import PARTS, adapted, adapted_layers, merged_weights
from loop_rl.models.loading import load_model
from loop_rl.recipe.rl import LoraSection, Recipe
from loop_rl.rollout.record import Rollout
from loop_rl.rollout.sampler import sample_groups
from loop_rl.sizes.memory import run_parts
from loop_rl.training.trainer import Trainer
from tests.families import FAMILIES, write_model
from tests.rounding import rounding
from tests.tiny import tiny_model

PROMPTS = ["2+3=", "7*6=", "one more and one: ", "9-4="]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory) -> Path:
    return write_model(request.param, tmp_path_factory.mktemp(request.param))


def even_length(completion: str) -> float:
    """A reward that a random model gets for about half of what it writes."""
    return float(len(completion) % 2 == 0)


def make_trainer(folder: Path, **sections) -> Trainer:
    rows = folder / "questions.jsonl"
    rows.write_text("".join(json.dumps({"question": p, "answer": "1"}) + "\n" for p in PROMPTS * 5))
    values = {
        "model": {"path": str(folder)},
        "data": {"name": str(rows), "template": "{question}"},
        "rollout": {"num_generations": 8, "max_completion_length": 8},
        "learner": {"estimator": "reuse_neumann4"},
        "optim": {"learning_rate": 3e-3},
    }
    return Trainer(Recipe.model_validate(values | sections))


def rollouts_of(trainer: Trainer) -> list[Rollout]:
    """Sampled by the merged weights, which is what a rollout worker holds."""
    sampler, tokenizer = load_model(trainer.recipe.model.path)[0], trainer.tokenizer
    sampler.load_state_dict(merged_weights(trainer.looped))
    prompts = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    return sample_groups(sampler, prompts, trainer.sampling, [10 * trainer.step + i for i in range(len(PROMPTS))])


def advantages_of(rollouts: list[Rollout], tokenizer) -> torch.Tensor:
    texts = [[tokenizer.decode(c.token_ids.tolist()) for c in rollout.completions] for rollout in rollouts]
    return group_advantages(torch.tensor([[even_length(text) for text in group] for group in texts]))


@pytest.mark.parametrize("lora", [None, {"r": 4}], ids=["all weights", "LoRA"])
def test_two_steps_of_reuse_and_neumann4(folder, lora):
    trainer = make_trainer(folder, lora=lora, health={"cosine_steps": 1})
    before = {name: value.clone() for name, value in merged_weights(trainer.looped).items()}
    for step in range(2):
        rollouts = rollouts_of(trainer)
        advantages = advantages_of(rollouts, trainer.tokenizer)
        batch = collate(samples_of(rollouts, advantages), True)
        with torch.no_grad():
            logps = score(trainer.model, batch, trainer.learner.estimator, 1.0).logps
        estimator = trainer.learner.estimator
        bound = rounding(lambda model, b=batch, e=estimator: score(model, b, e, 1.0).logps[b.mask], trainer.model)
        assert (logps - batch.behaviour_logps)[batch.mask].abs().max() <= bound
        metrics = trainer.learn(rollouts, advantages)
        assert metrics["skipped_update"] == 0 and metrics["grad_norm"] > 0
        cosine, residual = metrics["gradient/cosine"], metrics["residual/median"]
        print(
            f"\n{folder.name} {'LoRA' if lora else 'all'} step {step + 1}: cosine {cosine:.4f} residual {residual:.1e}"
        )
        assert residual > 0.05 or cosine > 0.98
    after = merged_weights(trainer.looped)
    assert {name for name in after if not torch.equal(after[name], before[name])} == expected_to_change(trainer)
    assert all(value.isfinite().all() for value in after.values())


def expected_to_change(trainer: Trainer) -> set[str]:
    """All weights, or those that have an adapter; not the exit gate's, nor an embedding that only starts the loop."""
    if trainer.recipe.lora is not None:
        return {
            f"{name}.weight"
            for name in adapted_layers(load_model(str(trainer.recipe.model.path))[0], trainer.recipe.lora)
        }
    expected = {name for name in trainer.looped.state_dict() if "exit_gate" not in name}
    if trainer.looped.config.initial_state == "embedding":
        expected -= {"model.embed_tokens.weight"}
    return expected


def set_adapters(model: torch.nn.Module) -> None:
    """B, which starts at zero, by seed."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name))))


@pytest.mark.parametrize("parts", [None, ["core"], ["prelude", "coda"]], ids=str)
def test_a_saved_model_is_the_base_plus_its_adapters(folder, parts, tmp_path):
    if folder.name.startswith("ouro") and parts == ["prelude", "coda"]:
        with pytest.raises(UserError, match="lora.parts: nothing to adapt in prelude, coda; .* lie in core"):
            make_trainer(folder, lora={"r": 2, "parts": parts})
        return
    trainer = make_trainer(folder, lora={"r": 2, "lora_alpha": 6, "parts": parts})
    set_adapters(trainer.model)
    adapters = dict(trainer.model.named_parameters())
    base = load_model(str(folder))[0].state_dict()
    expected = dict(base)
    for name in base:
        layer = name.removesuffix(".weight")
        down = adapters.get(f"base_model.model.{layer}.lora_A.default.weight")
        if down is not None:
            up = adapters[f"base_model.model.{layer}.lora_B.default.weight"]
            expected[name] = base[name] + 6 / 2 * up @ down
    changed = {name for name in base if expected[name] is not base[name]}
    places = tuple(place for part in parts or PARTS for place in PARTS[part])
    linear = {n for n, m in load_model(str(folder))[0].named_modules() if isinstance(m, torch.nn.Linear)}
    assert changed == {f"{n}.weight" for n in linear if n.startswith(places)}
    trainer.save(tmp_path)
    saved = load_model(str(tmp_path / "model"))[0]
    for weights in (merged_weights(trainer.looped), saved.state_dict()):
        assert weights.keys() == expected.keys()
        for name, value in weights.items():
            largest = 8 * torch.finfo(value.dtype).eps * float(value.abs().max())  # 6 products and a sum
            torch.testing.assert_close(value, expected[name], rtol=0, atol=largest)
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        bound = rounding(lambda model: model(ids).logits, saved)
        torch.testing.assert_close(saved(ids).logits, trainer.model(input_ids=ids).logits, rtol=0, atol=bound)
    assert any("lora_A" in name for name in load_file(tmp_path / "adapter.safetensors"))


# ---- what is refused


@pytest.mark.parametrize(
    ("model", "lora", "message"),
    [
        ({}, {"target_modules": ["nosuch"]}, "no module 'nosuch'; its linear layers are down_proj, gate_proj"),
        ({}, {"target_modules": ["attn_norm"]}, "'attn_norm' is a RMSNorm"),
        ({}, {"target_modules": ["lm_head"], "parts": ["core"]}, "nothing to adapt in core; .* lie in no part"),
        ({}, {"parts": []}, "nothing to adapt in an empty list"),
        ({"tie_word_embeddings": True}, {"target_modules": ["lm_head"]}, "one matrix with the embedding"),
        ({"tie_word_embeddings": True}, {"target_modules": ["embed_tokens"]}, "one matrix with the head"),
        ({"injection": "huginn_linear"}, {"target_modules": ["linear"]}, "applied in two halves"),
        ({"prelude_layers": 0}, {"parts": ["prelude"]}, "nothing to adapt in prelude"),
    ],
)
def test_adapters_that_do_not_fit_are_refused_before_anything_is_loaded(model, lora, message):
    recipe = Recipe.model_validate({"lora": lora})
    for refuses in (
        lambda looped: adapted(looped, recipe.lora),
        lambda looped: run_parts(recipe, looped.config, prompt_length=4),  # what --dry-run adds up
    ):
        with pytest.raises(UserError, match=f"lora.(target_modules|parts): .*{message}") as error:
            refuses(tiny_model(**model))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("injection", ["deq_qkv", "huginn_linear", "parcae", "parcae_no_norm", "ortho", "linear"])
def test_every_adapter_of_our_own_injections_takes_part(injection):
    model = adapted(tiny_model(injection=injection), LoraSection(r=2))
    ids = torch.arange(3, 12)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    idle = [n for n, p in model.named_parameters() if "lora_B" in n and (p.grad is None or not p.grad.abs().sum() > 0)]
    assert idle == []


def test_embedding_and_head_of_their_own_take_an_adapter():
    looped = tiny_model(torch.float64)
    base = {name: value.clone() for name, value in looped.state_dict().items()}
    model = adapted(looped, LoraSection(r=2, target_modules=["embed_tokens", "lm_head"]))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.fill_(0.05)
    merged = merged_weights(model.get_base_model())
    assert {n for n in base if not torch.equal(merged[n], base[n])} == {"model.embed_tokens.weight", "lm_head.weight"}
    ids = torch.arange(3, 12)[None]
    plain = tiny_model(torch.float64)
    plain.load_state_dict(merged)
    torch.testing.assert_close(plain(ids).logits, model(input_ids=ids).logits, rtol=0, atol=1e-11)
