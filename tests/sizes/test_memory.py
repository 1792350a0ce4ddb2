"""The memory estimate against tensors that exist: weights, banks, saved activations."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from loop_rl.errors import UserError
from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import Sample, collate
from loop_rl.learner.head import CHUNK
from loop_rl.learner.optimizer import make_optimizer, trainable
from loop_rl.learner.scoring import score
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.models.adapters import adapted
from loop_rl.models.attention.decoding import DecodeContext
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.recipe.rl import Recipe
from loop_rl.rollout.record import Completion, Rollout
from loop_rl.sizes import memory
from loop_rl.sizes.memory import (
    MIB,
    Memory,
    Part,
    activations,
    adapter_count,
    available_memory,
    bank_bytes,
    check_fits,
    parameter_count,
    run_parts,
)
from loop_rl.training import trainer

CONFIG = LoopedConfig(vocab_size=64, hidden_size=64, intermediate_size=176, head_dim=16, depth=3)


def recipe(**sections):
    return Recipe.model_validate(sections)


def test_parameters_are_those_of_the_model():
    model = LoopedForCausalLM(CONFIG)
    assert parameter_count(CONFIG) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
def test_adapters_are_those_of_peft(targets):
    model = get_peft_model(LoopedForCausalLM(CONFIG), LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM"))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert adapter_count(CONFIG, recipe(lora={"r": 4, "target_modules": targets})) == trained


def test_banks_are_those_of_a_rollout():
    prompts, repeats, length, capacity = 2, 3, 5, 7
    model = LoopedForCausalLM(CONFIG)
    mask = torch.ones(prompts, length, dtype=torch.long)
    prefill = PaddedContext(CONFIG, mask, depth=3, record=True)
    with torch.no_grad():
        e = model.model.prelude_forward(torch.zeros_like(mask), prefill)
        z = model.model.endpoint(e, model.model.draw_initial_state(prefill.position_ids), prefill)
        model.model.coda_forward(z, prefill)
    context = DecodeContext(prefill, mask, repeats, capacity)
    held = sum(x.nbytes for bank in context.banks.values() for x in bank)
    rows, tokens = prompts * repeats, length + capacity
    assert held == bank_bytes(recipe(), CONFIG, 3, rows, tokens, workers=1)
    # Bounded by the token budget of each worker, and never below a row of each.
    for budget, counted in ((30, 2 * 30), (10**9, rows * tokens), (1, 2 * tokens)):
        bounded = recipe(rollout={"max_batch_tokens": budget})
        assert bank_bytes(bounded, CONFIG, 3, rows, tokens, workers=2) * rows * tokens == held * counted


def saved_bytes(name, depth, config=CONFIG, rows=2, prompt=20, completion=30):
    """Bytes of distinct storages that autograd saves while scoring, parameters left out."""
    rng = np.random.default_rng(0)
    model = LoopedForCausalLM(config)
    rollout = Rollout(rng.integers(3, 60, prompt), np.zeros((prompt, config.hidden_size), np.float32), [], 0, 0)
    states = np.zeros((completion - 1, config.hidden_size), np.float32)
    made = Completion(rng.integers(3, 60, completion), np.zeros(completion, np.float32), states, depth, "length", 1)
    estimator = parse_estimator(name)
    batch = collate([Sample(rollout, made, 1.0)] * rows, estimator.needs_states)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = (storage.nbytes(), tensor)  # the tensor: so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        score(model, batch, estimator, 1.0)
    return sum(size for size, _ in held.values())


@pytest.mark.parametrize("name", ["full_bptt", "truncated_bptt2", "recompute_neumann4", "reuse_neumann4"])
@pytest.mark.parametrize("depth", [2, 6])
def test_activations_are_near_what_autograd_saves(name, depth):
    rollout = recipe(rollout={"max_completion_length": 30}).rollout
    said = activations(CONFIG, parse_estimator(name), depth, 2, 50, rollout, 4)
    assert 0.9 < said / saved_bytes(name, depth) < 1.5


def test_logits_of_a_large_vocabulary_are_those_of_a_chunk():
    wide = LoopedConfig(**{**CONFIG.to_diff_dict(), "vocab_size": 65536})
    rollout = recipe(rollout={"max_completion_length": 1000}).rollout

    def said(rows):
        return activations(wide, parse_estimator("reuse_neumann4"), 3, rows, 1010, rollout, 4)

    assert said(1) > CHUNK * 20, "a chunk's logits, five times in float32"
    assert said(16) - said(8) == 8 * (activations(CONFIG, parse_estimator("reuse_neumann4"), 3, 1, 1010, rollout, 4)
                                      - 1000 * CONFIG.vocab_size * 20)  # fmt: skip


def test_reuse_does_not_grow_with_depth_and_bptt_does():
    def size(name, depth):
        parts = run_parts(recipe(learner={"estimator": name}, model={"depth": depth}), CONFIG, 50)
        return {part.name: part.size for part in parts}

    assert size("reuse_neumann4", 32)["activations"] == size("reuse_neumann4", 4)["activations"]
    assert size("full_bptt", 32)["activations"] > 4 * size("full_bptt", 4)["activations"]
    assert "endpoint states" not in size("full_bptt", 4)


def test_a_reference_model_and_adapters_change_the_parts():
    def names(**sections):
        return {part.name: part.size for part in run_parts(recipe(**sections), CONFIG, 50)}

    plain, with_kl = names(), names(learner={"beta": 0.1})
    assert with_kl["reference model"] == plain["weights"] == 4 * parameter_count(CONFIG)
    adapted = names(lora={"r": 2}, learner={"beta": 0.1})
    assert "reference model" not in adapted  # the adapters are switched off instead
    assert adapted["Adam"] == 2 * adapted["gradients"] < plain["Adam"]
    assert "KV banks" not in names(rollout={"cluster": "auto"})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, {"r": 2}])
def test_what_training_keeps_is_what_an_optimizer_keeps(dtype, lora):
    settings = recipe(model={"dtype": dtype}, lora=lora)
    looped = LoopedForCausalLM(CONFIG).to(getattr(torch, dtype))
    model = looped if lora is None else adapted(looped, settings.lora)
    optimizer = make_optimizer(trainable(model), settings.optim)
    for p in trainable(model):
        p.grad = torch.zeros_like(p, dtype=torch.float32)
    optimizer.step()
    said = {part.name: part.size for part in run_parts(settings, CONFIG, 50)}
    assert said["weights"] == sum(p.nbytes for p in model.parameters())
    assert said["gradients"] == sum(p.grad.nbytes for p in trainable(model))
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert said["Adam"] == sum(moment.nbytes for moment in moments)
    masters = sum(master.nbytes for master, _ in getattr(optimizer, "copies", []))
    assert said.get("master weights", 0) == masters and bool(masters) == (dtype == "bfloat16" and lora is None)


def test_refusal_names_both_numbers_and_the_mend():
    parts = [Part("weights", 100 * MIB), Part("KV banks", 900 * MIB), Part("processes", 50 * MIB, on_device=False)]
    check_fits(Memory(parts, 1050 * MIB, None))
    with pytest.raises(UserError, match=r"about 1050 MiB but this machine has 1049 MiB.*KV banks.*max_batch_tokens"):
        check_fits(Memory(parts, 1049 * MIB, None))
    check_fits(Memory(parts, 50 * MIB, 1000 * MIB))
    with pytest.raises(UserError, match="1000 MiB but the GPU has 999 MiB"):
        check_fits(Memory(parts, 50 * MIB, 999 * MIB))


def test_a_run_that_does_not_fit_is_refused_before_its_model_is_loaded(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: MIB)
    monkeypatch.setattr(trainer, "load_model", pytest.fail)
    few = {"train_size": 16, "eval_size": 1}
    with pytest.raises(UserError, match="the run needs about .* but (this machine|the GPU) has"):
        trainer.Trainer(recipe(data=few))


def test_available_memory_is_no_more_than_the_machine_has():
    import psutil

    assert 0 < available_memory() <= psutil.virtual_memory().total
