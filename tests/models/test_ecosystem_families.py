"""Every family as a transformers model: TRL's trainers, accelerate, checkpointed activations, bfloat16, chat, Auto."""

import copy

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from loop_rl.errors import UserError
from loop_rl.fixed_point import parse_estimator
from loop_rl.learner.batch import collate, samples_of
from loop_rl.learner.scoring import score
from loop_rl.models import LoopedForCausalLM
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.loading import load_model
from loop_rl.rollout.sampler import sample_groups
from loop_rl.rollout.sampling import Sampling
from tests.families import FAMILIES, write_model
from tests.rounding import logp_rounding, rounding

TEXTS = ["2+3=5", "one more and one less", "a=1: 7*6=42", "12-4=8"]
COMMON = dict(
    use_cpu=True, bf16=False, max_steps=2, per_device_train_batch_size=4, learning_rate=0.01, report_to="none",
    logging_steps=1, save_strategy="no", disable_tqdm=True,
)  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(request, tmp_path_factory):
    """Model and tokenizer; a test that changes the model takes a copy."""
    return load_model(str(write_model(request.param, tmp_path_factory.mktemp(request.param))))


def cross_entropy(model: LoopedForCausalLM, tokenizer, texts: list[str]) -> torch.Tensor:
    """Mean over all next tokens, the end's included, of rows run one by one."""
    losses = []
    with torch.no_grad():
        for text in texts:
            ids = torch.tensor([tokenizer(text).input_ids + [tokenizer.eos_token_id]])
            losses.append(F.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none"))
    return torch.cat(losses).mean()


def moved(model: torch.nn.Module, before: dict[str, torch.Tensor]) -> set[str]:
    """Parameters that changed; none may have become anything but finite."""
    assert all(p.isfinite().all() for p in model.parameters())
    return {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}


def assert_trained(model: LoopedForCausalLM, before: dict[str, torch.Tensor]) -> None:
    """Every weight but the exit gate's, which takes part in no loss."""
    expected = {name for name, _ in model.named_parameters() if "exit_gate" not in name}
    assert moved(model, before) == expected


def test_trl_s_sft_trainer(loaded, tmp_path):
    model, tokenizer = copy.deepcopy(loaded[0]), loaded[1]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    args = SFTConfig(output_dir=str(tmp_path), max_length=32, shuffle_dataset=False, **COMMON)
    data = Dataset.from_dict({"text": TEXTS})
    trainer = SFTTrainer(model, args=args, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    bound = 2 * rounding(lambda m: cross_entropy(m, tokenizer, TEXTS), loaded[0])
    assert losses[0] == pytest.approx(cross_entropy(loaded[0], tokenizer, TEXTS).item(), abs=bound)
    assert losses[1] < losses[0]
    assert_trained(model, before)


def test_trl_s_grpo_trainer(loaded, tmp_path):
    model, tokenizer = copy.deepcopy(loaded[0]), loaded[1]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    args = GRPOConfig(
        output_dir=str(tmp_path), num_generations=4, max_completion_length=6, loss_type="dr_grpo",
        scale_rewards="none", seed=1, **COMMON,
    )  # fmt: skip
    rewards = iter([[1.0, 0.0, 0.0, 1.0]] * 9)
    trainer = GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: next(rewards),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["2+3=", "one more"] * 4}),
        processing_class=tokenizer,
    )
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    assert len(steps) == 2
    assert all(torch.tensor([step["loss"], step["grad_norm"]]).isfinite().all() for step in steps)
    assert_trained(model, before)


def test_accelerate_prepares_and_steps(loaded):
    model = copy.deepcopy(loaded[0])
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ids = torch.arange(12).view(2, 6) + 3
    model, optimizer = accelerator.prepare(model, optimizer)
    first = model(input_ids=ids, labels=ids).loss
    accelerator.backward(first)
    optimizer.step()
    assert model(input_ids=ids, labels=ids).loss < first


def gradients(model: LoopedForCausalLM, ids: torch.Tensor) -> tuple[dict[str, torch.Tensor], int]:
    """Of a training step, and how many numbers autograd kept between its two passes."""
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.update({t.data_ptr(): t.numel()}) or t, lambda t: t):
        loss = model(ids, labels=ids).loss
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, sum(kept.values())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_activations_give_the_same_gradients(loaded, reentrant):
    model = copy.deepcopy(loaded[0]).train()
    ids = torch.randint(3, 46, (2, 24), generator=torch.Generator().manual_seed(0))
    plain, kept = gradients(model, ids)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert model.is_gradient_checkpointing
    checkpointed, kept_less = gradients(model, ids)
    assert plain.keys() == checkpointed.keys()
    assert all(torch.equal(plain[name], checkpointed[name]) for name in plain)
    assert kept_less < 0.4 * kept
    model.gradient_checkpointing_disable()
    assert gradients(model, ids)[1] == kept


def test_checkpointing_stays_out_of_the_estimators(loaded, monkeypatch):
    """Their products at the endpoint go through F again and again, which nothing may compute again."""
    model = copy.deepcopy(loaded[0]).train()
    model.gradient_checkpointing_enable()
    rollouts = sample_groups(model, [[5, 6, 7]], Sampling(2, 5), [3])
    batch = collate(samples_of(rollouts, torch.ones(1, 2)), True)
    monkeypatch.setattr(model.model, "_gradient_checkpointing_func", None)
    for name in ("full_bptt", "reuse_neumann4"):
        score(model, batch, parse_estimator(name), 1.0).logps.sum().backward()


def test_checkpointing_every_other_block_is_refused(loaded):
    with pytest.raises(UserError, match="every_n_layers"):
        copy.deepcopy(loaded[0]).activation_checkpointing_enable(every_n_layers=2)


def test_bfloat16(loaded):
    model, tokenizer = copy.deepcopy(loaded[0]).to(torch.bfloat16), loaded[1]
    inputs = tokenizer(["2+3=", "one more and one"], return_tensors="pt", padding=True, padding_side="left")

    def probabilities(m):
        return m(**inputs).logits[:, -1].double().softmax(-1)

    with torch.no_grad():
        ours, exact = probabilities(model), probabilities(loaded[0])
    assert (ours - exact).abs().max() <= rounding(probabilities, loaded[0], torch.bfloat16)
    out = model.generate(**inputs, max_new_tokens=5, do_sample=False)
    assert out.shape[1] <= inputs.input_ids.shape[1] + 5
    context = PaddedContext(model.config, inputs.attention_mask, None, model.dtype)
    assert context.cos.dtype == context.sin.dtype == torch.float32
    rollouts = sample_groups(model, [[5, 6, 7], [8, 9]], Sampling(2, 5), [3, 4])
    samples = samples_of(rollouts, torch.ones(2, 2))
    batch = collate(samples, True)
    scores = score(model, batch, parse_estimator("reuse_neumann4"), 1.0)
    assert scores.logps.dtype == batch.behaviour_logps.dtype == torch.float32
    bound = logp_rounding(model, samples, dtype=torch.bfloat16)
    assert (scores.logps - batch.behaviour_logps)[batch.mask].abs().max() <= bound
    scores.logps[batch.mask].sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_a_chat_is_answered(loaded):
    model, tokenizer = loaded
    chat = [{"role": "user", "content": "2+3=?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert tokenizer.decode(inputs.input_ids[0]) == "<bos>u:2+3=?<eos><bos>a:"
    out = model.generate(**inputs, max_new_tokens=4, do_sample=False, eos_token_id=None)
    ids = inputs.input_ids
    for _ in range(4):  # the same, without a cache
        with torch.no_grad():
            ids = torch.cat((ids, model(ids).logits[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(out, ids)


def test_auto_classes_read_what_is_saved(loaded, tmp_path):
    model, tokenizer = loaded
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=False)
    assert type(again) is LoopedForCausalLM and AutoTokenizer.from_pretrained(tmp_path).eos_token == "<eos>"
    ids = torch.arange(3, 9)[None]
    assert torch.equal(again(ids).logits, model(ids).logits)
