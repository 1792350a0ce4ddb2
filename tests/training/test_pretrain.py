"""Pretraining: the gradient against plain autograd, learning, resuming, interruption, refusals."""

import json
import math
import os
import signal
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from loop_rl.errors import UserError
from loop_rl.models import LoopedConfig, LoopedForCausalLM
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.initial_state import initial_state
from loop_rl.recipe.pretrain import PretrainRecipe
from loop_rl.recipe.rl import load_recipe
from loop_rl.runs.checkpoints import latest_checkpoint
from loop_rl.training import pretrain as module
from loop_rl.training import text as text_trainer
from loop_rl.training.pretrain import Pretrainer, pretrain, truncated_loss
from loop_rl.training.text import data_tokenizer, make_text_optimizer

EXACT = 1e-10  # of float64: some thousand roundings, of gradients that partly cancel
SIZES = dict(hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, head_dim=16)


def recipe_for(folder, name="run", model=None, data=None, prior=None, optim=None, **train):
    return PretrainRecipe.model_validate(
        {
            "model": {**SIZES, "depth": 3, "core_layers": 1, **(model or {})},
            "data": {"length": 64, "problems": 40, **(data or {})},
            "prior": {"mean": 3.0, "cap": 8, **(prior or {})},
            "optim": {"learning_rate": 3e-3, **(optim or {})},
            "train": {"max_steps": 6, "batch_size": 4, "backprop_depth": 2, "threads": 1, **train},
            "run": {"name": name, "folder": str(folder)},
        }
    )


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights(run):
    return AutoModelForCausalLM.from_pretrained(run / "model", dtype=torch.float32).state_dict()


def assert_same_weights(first, second):
    first, second = weights(first), weights(second)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(("depth", "backprop_depth"), [(5, 2), (5, 1), (2, 4), (4, 4)])
def test_gradient_is_that_of_the_last_recurrences_with_earlier_state_detached(depth, backprop_depth):
    torch.manual_seed(0)
    model = LoopedForCausalLM(LoopedConfig(vocab_size=40, max_position_embeddings=32, **SIZES)).double()
    ids = torch.randint(3, 40, (2, 9))
    labels = ids.clone()
    labels[0, :4] = -100
    seeds = torch.tensor([5, 6])
    loss = truncated_loss(model, ids, labels, depth, backprop_depth, seeds)
    loss.backward()
    got = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}

    model.zero_grad()
    context = PaddedContext(model.config, torch.ones_like(ids), dtype=torch.float64)
    injected = model.model.prelude_forward(ids, context)
    state = initial_state(seeds, torch.arange(9).expand(2, 9), 32, model.config.initial_state_std).double()
    for recurrence in range(depth):
        with torch.set_grad_enabled(recurrence >= depth - backprop_depth):
            state = model.model.recur(state, injected, context, recurrence)
    logits = model.lm_head(model.model.coda_forward(state, context))
    expected = sum(
        F.cross_entropy(logits[row, t], labels[row, t + 1], reduction="none")
        for row in range(2)
        for t in range(8)
        if labels[row, t + 1] != -100
    )
    expected.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=EXACT)
    largest = max(float(grad.abs().max()) for grad in got.values())
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(got[name], parameter.grad, rtol=0, atol=EXACT * largest, msg=name)
    assert got.keys() == {name for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_loss_falls_on_a_tiny_corpus(tmp_path):
    run = pretrain(recipe_for(tmp_path, data={"problems": 4, "length": 64}, max_steps=60, batch_size=4), progress=False)
    losses = [row["loss"] for row in rows_of(run)]
    assert losses[0] > 5.5  # about log 512
    assert losses[-1] < 0.6 * losses[0]
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    assert len(tokenizer) == weights(run)["lm_head.weight"].shape[0] == 512
    assert load_recipe(run / "recipe.yaml", schema=PretrainRecipe).train.max_steps == 60
    assert json.loads((run / "environment.json").read_text())["threads"] == 1


def test_accumulated_micro_batches_weigh_by_their_tokens(tmp_path):
    """Two micro-batches of 2 rows give the gradient of one of 4 at a fixed depth, answers of unequal length or not."""
    grads = []
    for batch_size, accumulation in ((4, 1), (2, 2)):
        recipe = recipe_for(
            tmp_path,
            data={"loss_on": "answer"},
            model={"initial_state_std": 0.0},
            prior={"name": "fixed"},
            batch_size=batch_size,
            accumulation=accumulation,
        )
        trainer = Pretrainer(recipe)
        trainer.model.double()
        kept = {}
        trainer.optimizer.step = lambda kept=kept, trainer=trainer: kept.update(
            {name: parameter.grad.clone() for name, parameter in trainer.model.named_parameters()}
        )
        kept["loss"] = torch.tensor(trainer.update()["loss"], dtype=torch.float64)
        grads.append(kept)
    assert grads[0].keys() == grads[1].keys()
    for name, whole in grads[0].items():
        atol = EXACT * float(whole.abs().max())
        torch.testing.assert_close(grads[1][name], whole, rtol=0, atol=atol, msg=name)


def test_resumed_run_is_bitwise_the_uninterrupted_one(tmp_path):
    whole = pretrain(recipe_for(tmp_path, "whole"), progress=False)
    recipe = recipe_for(tmp_path, "cut", save_steps=2)
    update = Pretrainer.update

    def die_at_five(self):
        if self.step == 5:
            raise RuntimeError("power cut")
        return update(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pretrainer, "update", die_at_five)
        with pytest.raises(RuntimeError):
            pretrain(recipe, progress=False)
    cut = tmp_path / "cut"
    assert latest_checkpoint(cut / "checkpoints").name == "step_4"
    torch.rand(3)  # the global generator has moved on
    assert pretrain(recipe, resume=True, progress=False) == cut
    assert_same_weights(whole, cut)
    first, second = rows_of(whole), rows_of(cut)
    assert [row["step"] for row in second] == list(range(1, 7))
    assert [row["loss"] for row in first] == [row["loss"] for row in second]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_run_that_can_go_on(tmp_path, number):
    whole = pretrain(recipe_for(tmp_path, "whole"), progress=False)
    recipe = recipe_for(tmp_path, "cut")
    update = Pretrainer.update

    def interrupted(self):
        if self.step == 2:
            os.kill(os.getpid(), number)
        return update(self)

    handler = signal.getsignal(number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pretrainer, "update", interrupted)
        with pytest.raises(KeyboardInterrupt, match="update 3"):
            pretrain(recipe, progress=False)
    assert signal.getsignal(number) is handler
    checkpoint = latest_checkpoint(tmp_path / "cut" / "checkpoints")
    assert checkpoint.name == "step_3"
    assert AutoModelForCausalLM.from_pretrained(checkpoint / "model").config.model_type == "looped"
    assert_same_weights(whole, pretrain(recipe, resume=True, progress=False))


def test_an_update_that_is_not_finite_is_skipped_and_counted(tmp_path, monkeypatch):
    loss = truncated_loss
    monkeypatch.setattr(module, "truncated_loss", lambda *a: loss(*a) * (float("nan") if trainer.step == 1 else 1))
    trainer = Pretrainer(recipe_for(tmp_path))
    trainer.update()
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    row = trainer.update()
    assert math.isnan(row["loss"]) and row["skipped"] == 1
    assert all(torch.equal(before[key], value) for key, value in trainer.model.state_dict().items())
    row = trainer.update()
    assert math.isfinite(row["loss"]) and row["skipped"] == 1


def test_updates_that_are_never_finite_stop_the_run(tmp_path, monkeypatch):
    loss = truncated_loss
    monkeypatch.setattr(module, "truncated_loss", lambda *a: loss(*a) * float("nan"))
    with pytest.raises(UserError, match="learning_rate"):
        pretrain(recipe_for(tmp_path, max_steps=30), progress=False)


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    trainer = Pretrainer(recipe_for(tmp_path))
    trainer.optimizer.param_groups[0]["params"][0].data[0] = math.inf
    with pytest.raises(UserError, match="embed_tokens.weight and 0 other weights are not finite after update 0"):
        trainer.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_decay_is_on_matrices_only(tmp_path):
    trainer = Pretrainer(recipe_for(tmp_path))
    decayed, rest = make_text_optimizer(trainer.model, trainer.recipe.optim).param_groups
    assert decayed["weight_decay"] == 0.1 and all(p.dim() >= 2 for p in decayed["params"])
    assert rest["weight_decay"] == 0.0 and all(p.dim() < 2 for p in rest["params"])
    assert len(decayed["params"]) + len(rest["params"]) == len(list(trainer.model.parameters()))


def test_refusals(tmp_path):
    with pytest.raises(UserError, match="max_position_embeddings"):
        pretrain(recipe_for(tmp_path, data={"length": 5000}), progress=False)
    with pytest.raises(UserError, match="no run to resume"):
        pretrain(recipe_for(tmp_path), resume=True, progress=False)
    with pytest.raises(UserError, match="tokenizer"):
        pretrain(recipe_for(tmp_path, "b", data={"tokenizer": str(tmp_path)}), progress=False)
    with pytest.raises(UserError, match="vocab_size"):
        pretrain(recipe_for(tmp_path, "c", model={"vocab_size": 10}), progress=False)
    with pytest.raises(UserError, match=r"head_dim \(15\) must be even"):
        pretrain(recipe_for(tmp_path, "c", model={"head_dim": 15}), progress=False)
    with pytest.raises(UserError, match="training this model's weights takes .* GiB but"):
        pretrain(recipe_for(tmp_path, "c", model={"hidden_size": 900_000}), progress=False)
    pretrain(recipe_for(tmp_path, "d", max_steps=1), progress=False)
    with pytest.raises(UserError, match="already holds a run"):
        pretrain(recipe_for(tmp_path, "d", max_steps=1), progress=False)
    with pytest.raises(UserError, match="prior.mean is 4.0, the run was started with 3.0"):
        pretrain(recipe_for(tmp_path, "d", max_steps=2, prior={"mean": 4.0}), resume=True, progress=False)


def test_the_shipped_recipe_loads():
    recipe = load_recipe("pretrain_embedded", schema=PretrainRecipe)
    assert recipe.run.name == "pretrain_embedded"
    assert data_tokenizer(recipe.data.tokenizer).vocab_size <= recipe.model.vocab_size
    assert 1 < recipe.prior.mean < recipe.prior.cap
    assert recipe.data.length <= recipe.model.max_position_embeddings


def test_a_run_that_failed_before_its_first_update_can_be_started_again(tmp_path, monkeypatch):
    def fail(self):
        raise RuntimeError

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(Pretrainer, "update", fail)
        pretrain(recipe_for(tmp_path), progress=False)
    assert (tmp_path / "run" / "recipe.yaml").is_file()
    pretrain(recipe_for(tmp_path, max_steps=1), progress=False)
    with pytest.raises(UserError, match="already holds a run"):
        pretrain(recipe_for(tmp_path), progress=False)
    with pytest.raises(UserError):
        pretrain(recipe_for(tmp_path, "other", data={"name": "missing.txt"}), progress=False)
    assert not (tmp_path / "other").exists()


def test_what_is_no_fault_of_the_checkpoint_is_not_blamed_on_it(tmp_path, monkeypatch):
    pretrain(recipe_for(tmp_path, max_steps=1), progress=False)
    monkeypatch.setattr(text_trainer, "load_corpus", mock.Mock(side_effect=RuntimeError("the corpus fails")))
    with pytest.raises(RuntimeError, match="the corpus fails"):
        pretrain(recipe_for(tmp_path, max_steps=2), resume=True, progress=False)


def test_a_model_without_a_depth_is_made_at_the_prior_s_mean(tmp_path):
    tokenizer = data_tokenizer("embedded")
    for prior, depth in (({"mean": 4.4}, 4), ({"name": "fixed", "mean": 7.0}, 7), ({"name": "uniform"}, 4)):
        recipe = recipe_for(tmp_path, model={"depth": None}, prior=prior)
        assert module.make_config(recipe, tokenizer).depth == depth
    assert module.make_config(recipe_for(tmp_path), tokenizer).depth == 3
