"""Fine-tuning through TRL: the gradient against truncated_loss, resuming, skipping, data, refusals."""

import contextlib
import errno
import json
import os
import shutil
import signal
from unittest import mock

import pytest
import torch
from transformers import AutoTokenizer

from loop_rl.errors import UserError
from loop_rl.models.loading import EMBEDDED, load_config, load_model
from loop_rl.recipe.kinds import kind_of, load_any, load_for
from loop_rl.recipe.reading import recipes_folder
from loop_rl.recipe.rl import load_recipe
from loop_rl.recipe.sft import SftDataSection, SftRecipe
from loop_rl.runs.checkpoints import latest_checkpoint
from loop_rl.training import sft as module
from loop_rl.training.pretrain import truncated_loss
from loop_rl.training.sft import LoopedSFTTrainer, sft
from loop_rl.training.sft_callback import RunKeeper
from loop_rl.training.sft_data import sft_rows
from tests.damage import full_disk, seal_again
from tests.tiny import tiny_model

EXACT = 1e-10  # of float64: some thousand roundings, of gradients that partly cancel


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A tiny looped model with the embedded model's tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    sizes = dict(vocab_size=512, prelude_layers=1, core_layers=1, coda_layers=1, depth=3)
    tiny_model(**sizes, tie_word_embeddings=True).save_pretrained(folder)
    AutoTokenizer.from_pretrained(EMBEDDED).save_pretrained(folder)
    return folder


@pytest.fixture
def recipe_for(model_folder, tmp_path):
    def make(name="run", data=None, prior=None, optim=None, **train):
        return SftRecipe.model_validate(
            {
                "model": {"path": str(model_folder)},
                "data": {"length": 128, "train_size": 12, **(data or {})},
                "prior": {"mean": 3.0, "cap": 6, **(prior or {})},
                "optim": {"learning_rate": 3e-3, **(optim or {})},
                "train": {"max_steps": 5, "batch_size": 4, "backprop_depth": 2, "threads": 1, **train},
                "run": {"name": name, "folder": str(tmp_path)},
            }
        )

    return make


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_same_weights(first, second):
    first, second = (load_model(str(run / "model"))[0].state_dict() for run in (first, second))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


def in_float64(path, dtype="float32"):
    model, tokenizer = load_model(path, dtype)
    return model.double(), tokenizer


def test_the_gradient_of_a_micro_batch_is_that_of_truncated_loss(recipe_for, monkeypatch):
    monkeypatch.setattr(module, "load_model", in_float64)
    recipe = recipe_for(max_steps=1, data={"train_size": 4})
    seen = {}
    step = LoopedSFTTrainer.training_step

    def watched(self, model, inputs, num_items_in_batch=None):
        seen["ids"], seen["labels"] = inputs["input_ids"].clone(), inputs["labels"].clone()
        seen["weights"] = {name: value.clone() for name, value in model.state_dict().items()}
        loss = step(self, model, inputs, num_items_in_batch)
        seen["grads"] = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        return loss

    monkeypatch.setattr(LoopedSFTTrainer, "training_step", watched)
    (row,) = rows_of(sft(recipe, progress=False))

    ids, labels = seen["ids"], seen["labels"]
    assert any((labels[i] == -100).sum() > (labels[j] == -100).sum() for i in range(4) for j in range(4))
    model, _ = in_float64(recipe.model.path)
    # the depth and the seeds as they are drawn: one number for the depth, then a seed for each row
    generator = torch.Generator().manual_seed(recipe.train.seed)
    depth = module.make_prior(recipe.prior).draw(generator)
    seeds = torch.randint(2**31, (4,), generator=generator)
    assert row["depths"] == [depth] and depth > 2
    total = 0.0
    for i in range(4):  # row by row and without its pads
        length = int((ids[i] != model.config.pad_token_id).sum())
        one = truncated_loss(model, ids[i : i + 1, :length], labels[i : i + 1, :length], depth, 2, seeds[i : i + 1])
        one.backward()
        total += float(one.detach())
    count = int((labels[:, 1:] != -100).sum())
    assert row["tokens"] == [count] and row["loss"] == pytest.approx(total / count, rel=EXACT)
    expected = {name: p.grad / count for name, p in model.named_parameters() if p.grad is not None}
    assert seen["grads"].keys() == expected.keys()
    largest = max(float(grad.abs().max()) for grad in expected.values())
    for name, grad in expected.items():
        torch.testing.assert_close(seen["grads"][name], grad, rtol=0, atol=EXACT * largest, msg=name)
    norm = torch.stack([grad.norm() for grad in expected.values()]).norm()
    assert row["grad_norm"] == pytest.approx(float(norm), rel=EXACT)


def test_micro_batches_weigh_by_their_tokens(recipe_for, monkeypatch):
    """Two micro-batches of 2 rows move the weights as one of 4 at a fixed depth; answers differ in length."""
    runs = []
    for batch_size, accumulation in ((4, 1), (2, 2)):
        recipe = recipe_for(
            f"by_{batch_size}",
            prior={"name": "fixed"},
            data={"train_size": 4},
            batch_size=batch_size,
            accumulation=accumulation,
            max_steps=1,
        )
        monkeypatch.setattr(module, "truncated_loss", seedless)
        monkeypatch.setattr(module, "load_model", in_float64)
        runs.append(sft(recipe, progress=False))
    first, second = (rows_of(run)[0] for run in runs)
    assert sum(first["tokens"]) == sum(second["tokens"]) and len(second["tokens"]) == 2
    assert first["loss"] == pytest.approx(second["loss"], rel=EXACT)
    assert first["grad_norm"] == pytest.approx(second["grad_norm"], rel=EXACT)


def seedless(model, ids, labels, depth, backprop_depth, row_seeds):
    return truncated_loss(model, ids, labels, depth, backprop_depth, torch.zeros_like(row_seeds))


def test_a_run_learns_and_leaves_what_others_leave(recipe_for):
    run = sft(recipe_for(max_steps=40, data={"train_size": 4}, optim={"learning_rate": 1e-2}), progress=False)
    rows = rows_of(run)
    assert [row["step"] for row in rows] == list(range(1, 41))
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]
    assert len({row["depth"] for row in rows}) > 2
    # 2 updates of warm-up, then the peak, and at last the schedule's floor of a tenth
    assert [rows[i]["learning_rate"] for i in (0, 2, -1)] == pytest.approx([5e-3, 1e-2, 1e-3])
    assert load_recipe(run / "recipe.yaml", schema=SftRecipe).train.max_steps == 40
    assert json.loads((run / "environment.json").read_text())["threads"] == 1
    assert load_config(str(run)).depth == load_config(str(run / "model")).depth == 3  # the prior's mean
    assert kind_of(str(run / "recipe.yaml")) == "sft"
    assert not list(run.glob(".*"))


def test_a_resumed_run_is_the_uninterrupted_one(recipe_for, monkeypatch):
    whole = sft(recipe_for("whole", prior={"learn": True}), progress=False)
    recipe = recipe_for("cut", prior={"learn": True}, save_steps=2)
    step = LoopedSFTTrainer.training_step

    def interrupted(self, *arguments, **keywords):
        if self.state.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(LoopedSFTTrainer, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt, match="update 3"):
            sft(recipe, progress=False)
    checkpoint = latest_checkpoint(whole.parent / "cut" / "checkpoints")
    assert checkpoint.name == "step_3"
    assert load_model(str(whole.parent / "cut"))[0].config.model_type == "looped"
    cut = sft(recipe, resume=True, progress=False)
    assert_same_weights(whole, cut)
    timeless = [
        [{k: v for k, v in row.items() if "time" not in k and "per_second" not in k} for row in rows_of(run)]
        for run in (whole, cut)
    ]
    assert timeless[0] == timeless[1]
    with pytest.raises(UserError, match="prior.mean is 2.0, the run was started with 3.0"):
        sft(recipe_for("cut", prior={"mean": 2.0}), resume=True, progress=False)


def test_a_finished_run_is_left_as_it_is(recipe_for, monkeypatch, capsys):
    run = sft(recipe_for(max_steps=2), progress=False)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    monkeypatch.setattr(module, "load_model", pytest.fail)  # nothing is even loaded
    assert sft(recipe_for(max_steps=2), resume=True, progress=False) == run
    assert "2 of 2 steps" in capsys.readouterr().err
    shutil.rmtree(run / "model")
    sft(recipe_for(max_steps=2), resume=True, progress=False)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["training_state.pt", "model/optimizer.pt", "model/rng_state.pth"])
def test_a_checkpoint_that_is_cut_though_its_manifest_fits_is_one_line(recipe_for, name):
    run = sft(recipe_for(max_steps=2), progress=False)
    checkpoint = run / "checkpoints" / "step_2"
    (checkpoint / name).write_bytes((checkpoint / name).read_bytes()[:100])
    seal_again(checkpoint)
    with pytest.raises(UserError, match="step_2") as error:
        sft(recipe_for(max_steps=4), resume=True, progress=False)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_checkpoint_without_what_the_trainer_would_do_without_is_refused(tmp_path, name):
    (tmp_path / "model").mkdir()
    for other in {"optimizer.pt", "scheduler.pt", "rng_state.pth"} - {name}:
        (tmp_path / "model" / other).touch()
    trainer = mock.Mock()
    with pytest.raises(UserError, match=f"no {name}.*the checkpoint before it"):
        RunKeeper(mock.Mock(), trainer, tmp_path, lambda: False, mock.Mock()).resume(tmp_path)
    trainer.train.assert_not_called()


def test_only_a_failed_write_is_blamed_on_the_disk(recipe_for, monkeypatch):
    def fails(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "/dev/something")

    monkeypatch.setattr(LoopedSFTTrainer, "training_step", fails)
    with pytest.raises(PermissionError):
        sft(recipe_for(max_steps=1), progress=False)


def test_a_full_disk_is_one_line_and_the_run_goes_on(recipe_for, monkeypatch):
    whole = sft(recipe_for("whole", max_steps=3), progress=False)
    step = LoopedSFTTrainer.training_step

    def filling(self, *arguments, **keywords):
        if self.state.global_step == 2:
            stack.enter_context(full_disk())
        return step(self, *arguments, **keywords)

    recipe = recipe_for("cut", max_steps=3, save_steps=1)
    with contextlib.ExitStack() as stack, monkeypatch.context() as patch, pytest.raises(UserError) as error:
        patch.setattr(LoopedSFTTrainer, "training_step", filling)
        sft(recipe, progress=False)
    assert "cannot write" in str(error.value) and "\n" not in str(error.value)
    assert [row["step"] for row in rows_of(whole.parent / "cut")] == [1, 2, 3]
    assert_same_weights(whole, sft(recipe, resume=True, progress=False))
    assert [row["step"] for row in rows_of(whole.parent / "cut")] == [1, 2, 3]


def test_an_update_that_is_not_finite_is_skipped_and_counted(recipe_for, monkeypatch):
    recipe = recipe_for(max_steps=3)
    calls, states = [], []

    def broken(*arguments):
        calls.append(1)
        states.append({key: value.clone() for key, value in arguments[0].state_dict().items()})
        return truncated_loss(*arguments) * (float("nan") if len(calls) == 2 else 1.0)

    monkeypatch.setattr(module, "truncated_loss", broken)
    rows = rows_of(sft(recipe, progress=False))
    assert [row["skipped"] for row in rows] == [0, 1, 1]
    assert rows[1]["loss"] is None and rows[1]["grad_norm"] is None and rows[2]["loss"] is not None
    before, during, after = states
    assert any(not torch.equal(before[key], during[key]) for key in before)
    assert all(torch.equal(during[key], after[key]) for key in before)


def test_weights_that_are_not_finite_are_not_saved(recipe_for):
    recipe = recipe_for(max_steps=1)
    optim = recipe.optim.model_copy(update={"learning_rate": 1e300})  # past what a recipe may say
    with pytest.raises(UserError, match="other weights are not finite after update 1"):
        sft(recipe.model_copy(update={"optim": optim}), progress=False)


def test_updates_that_are_never_finite_stop_the_run(recipe_for, monkeypatch):
    monkeypatch.setattr(module, "truncated_loss", lambda *arguments: truncated_loss(*arguments) * float("inf"))
    with pytest.raises(UserError, match="learning_rate"):
        sft(recipe_for(max_steps=30), progress=False)


# ---- data


TOKENIZER = AutoTokenizer.from_pretrained(EMBEDDED)


def parts_of(row):
    """The row's text that counts nothing, and the one that counts."""
    ids, labels = row["input_ids"], row["labels"]
    counted = [i for i, label in enumerate(labels) if label != -100]
    assert counted == list(range(counted[0], len(ids)))
    assert [ids[i] for i in counted] == [labels[i] for i in counted]
    return TOKENIZER.decode(ids[: counted[0]]), TOKENIZER.decode(ids[counted[0] :])


@pytest.fixture
def questions(tmp_path):
    file = tmp_path / "mine_train.jsonl"
    rows = [{"question": f"What is {n} + {n}?", "answer": f"It is {2 * n}."} for n in range(9)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine_test.jsonl").write_text(json.dumps({"question": "Held out?", "answer": "1"}) + "\n")
    return str(file)


def test_only_answers_count_and_prompts_are_those_of_rl(questions):
    rows = sft_rows(SftDataSection(name=questions, length=64), TOKENIZER)
    parts = dict(map(parts_of, rows))
    end = TOKENIZER.eos_token
    assert parts == {f"Question: What is {n} + {n}?\nAnswer:": f" It is {2 * n}.{end}" for n in range(9)}
    own = sft_rows(SftDataSection(name=questions, length=64, template="{question}\n", train_size=3), TOKENIZER)
    assert len(own) == 3
    assert all(p.endswith("?\n") and a.startswith("It is") for p, a in map(parts_of, own))


def test_a_chat_template_wraps_prompt_and_answer(questions, caplog):
    chatty = AutoTokenizer.from_pretrained(EMBEDDED)
    chatty.chat_template = (
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }};{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    settings = SftDataSection(name=questions, length=64, template="{question}", chat=True)
    parts = dict(map(parts_of, sft_rows(settings, chatty)))
    assert parts["user: What is 3 + 3?;assistant: "] == f"It is 6.;{TOKENIZER.eos_token}"
    assert caplog.text.count("9 of 9 answers without the end token") == 1
    caplog.clear()
    chatty.chat_template = chatty.chat_template.replace(";{%", "{{ eos_token }};{%")
    parts = dict(map(parts_of, sft_rows(settings, chatty)))
    end = TOKENIZER.eos_token
    assert parts[f"user: What is 3 + 3?{end};assistant: "] == f"It is 6.{end};"
    assert not caplog.text
    chatty.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}|"
    with pytest.raises(UserError, match="does not begin"):
        sft_rows(settings, chatty)


@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_plain_text_counts_whole_and_is_cut_into_rows(tmp_path, suffix):
    text = "one two three " * 100
    file = tmp_path / f"text.{suffix}"
    file.write_text(text if suffix == "txt" else json.dumps({"text": text}) + "\n")
    rows = sft_rows(SftDataSection(name=str(file), length=32), TOKENIZER)
    assert len(rows) == len(TOKENIZER(text).input_ids + [0]) // 32
    assert all(row["input_ids"] == row["labels"] and len(row["labels"]) == 32 for row in rows)


def test_long_rows_are_left_out_whole(questions, caplog):
    lengths = sorted(len(row["labels"]) for row in sft_rows(SftDataSection(name=questions, length=64), TOKENIZER))
    assert lengths[0] < lengths[-1]
    short = sft_rows(SftDataSection(name=questions, length=lengths[0]), TOKENIZER)
    assert 0 < len(short) < 9 and all(len(row["labels"]) == lengths[0] for row in short)
    assert "left out" in caplog.text
    with pytest.raises(UserError, match="data.length"):
        sft_rows(SftDataSection(name=questions, length=5), TOKENIZER)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (dict(name="mbpp"), "no programs"),
        (dict(name="arithmetic", train_size=0), "no training questions"),
        (dict(name="arithmetic", train_size=5, chat=True), "chat template"),
        (dict(name="gone.txt"), "gone.txt"),
        (dict(name="gone.jsonl"), "gone.jsonl"),
    ],
)
def test_data_that_cannot_be_used(data, said):
    with pytest.raises(UserError, match=said):
        sft_rows(SftDataSection(**data), TOKENIZER)


def test_refusals(recipe_for):
    with pytest.raises(UserError, match="max_position_embeddings"):
        sft(recipe_for(data={"length": 5000}), progress=False)
    with pytest.raises(UserError, match="no run to resume"):
        sft(recipe_for("other"), resume=True, progress=False)


# ---- recipes


@pytest.mark.parametrize("file", sorted(recipes_folder().glob("sft_*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_recipe_of_fine_tuning_loads(file):
    recipe = load_for("sft", file.stem)
    assert isinstance(recipe, SftRecipe) and recipe.run.name == file.stem
    assert recipe.prior.mean < recipe.prior.cap
    assert load_recipe(file, schema=SftRecipe) == recipe


def test_a_recipe_is_told_by_itself_and_what_it_extends(tmp_path):
    child = tmp_path / "child.yaml"
    child.write_text("extends: sft_arithmetic\nprior: {mean: 3.0}\n")
    assert kind_of(str(child)) == "sft" and load_any(str(child)).prior.mean == 3.0
    child.write_text("extends: pretrain_embedded\nprior: {mean: 3.0}\n")
    assert kind_of(str(child)) == "pretrain"
    with pytest.raises(UserError, match="loop-rl sft sft_arithmetic"):
        load_for("pretrain", "sft_arithmetic")
    with pytest.raises(UserError, match="loop-rl train quickstart_full_bptt"):
        load_for("sft", "quickstart_full_bptt")
