"""Distilled prefill: the loss against a loop over tokens, learning, resuming, and the banks that the student leaves."""

import json
import math
import shutil

import pytest
import torch

from loop_rl.errors import UserError
from loop_rl.learner import head
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.attention.terminal import TerminalPrefill
from loop_rl.models.loading import EMBEDDED, load_config, load_model
from loop_rl.models.prefill import STUDENT_FILE, PrefillStudent, prefill, student_endpoint, teacher_endpoint
from loop_rl.recipe.distill import DistillRecipe
from loop_rl.sizes.memory import student_count
from loop_rl.training import distill as module
from loop_rl.training.distill import Distiller, distill, distillation_loss
from tests.tiny import tiny_model


def recipe_for(folder, name="run", **train):
    return DistillRecipe.model_validate(
        {
            "teacher": {"depth": 4},
            "data": {"length": 64, "problems": 40},
            "optim": {"learning_rate": 1e-3},
            "train": {"max_steps": 6, "batch_size": 2, "threads": 1, **train},
            "run": {"name": name, "folder": str(folder)},
        }
    )


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def student_of(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model" / STUDENT_FILE)


@pytest.mark.parametrize(
    ("injection", "chunk"), [("ortho", head.CHUNK), ("ortho", 5 * 40), ("deq_qkv", 40), ("huginn_linear", 40)]
)
def test_the_loss_is_the_written_one(injection, chunk, monkeypatch):
    monkeypatch.setattr(head, "CHUNK", chunk)
    model = tiny_model(torch.float64, injection=injection)
    torch.manual_seed(1)
    student = PrefillStudent(model.model, from_teacher=False).double()
    ids, seeds = torch.randint(3, 40, (2, 6)), torch.tensor([4, 5])
    hidden, kl = distillation_loss(model, student, ids, 3, seeds)
    core = model.model
    with torch.no_grad():
        context = PaddedContext(model.config, torch.ones_like(ids), dtype=torch.float64, depth=3)
        prelude = core.prelude_forward(ids, context)
        z = core.endpoint(prelude, core.draw_initial_state(context.position_ids, seeds, prelude), context)
        x = core.injection.enter(torch.zeros_like(z), prelude.injected)
        for index, block in enumerate(student.blocks):
            x = block(x, context, 1 + index, 0, core.injection.qkv(index, prelude.injected), None)
        guess = core.injection.leave(x)
        p = model.lm_head(core.coda_forward(z, context, prelude)).softmax(-1)
        q = model.lm_head(core.coda_forward(core.recur(guess, prelude, context), context, prelude)).softmax(-1)
    flat = z.flatten().tolist()
    mean = sum(flat) / len(flat)
    variance = sum((x - mean) ** 2 for x in flat) / len(flat)
    distance = sum((a - b) ** 2 for a, b in zip(guess.flatten().tolist(), flat, strict=True))
    assert float(hidden.detach()) == pytest.approx(distance / (12 * 32 * variance), rel=1e-10)
    divergence = sum(
        a * math.log(a / b)
        for row in range(2)
        for t in range(6)
        for a, b in zip(p[row, t].tolist(), q[row, t].tolist(), strict=True)
    )
    assert float(kl.detach()) == pytest.approx(divergence / 12, rel=1e-9)


def test_a_student_that_is_the_core_predicts_the_first_recurrence_from_zero():
    model = tiny_model(torch.float64, initial_state_std=0.0)
    student = PrefillStudent(model.model)
    ids = torch.randint(3, 40, (2, 5))
    context = PaddedContext(model.config, torch.ones_like(ids), dtype=torch.float64, depth=1)
    prelude = model.model.prelude_forward(ids, context)
    assert torch.equal(student(model.model, prelude, context), teacher_endpoint(model.model)(prelude, None, context))


@torch.no_grad()
def test_prefill_leaves_the_banks_of_one_recurrence_on_the_prediction():
    """With a student that is exact, a distilled prefill is the teacher's with one more recurrence; padded rows too."""
    model = tiny_model(torch.float64)
    core = model.model
    ids = torch.randint(3, 40, (2, 6))
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])

    class Exact(torch.nn.Module):
        def forward(self, core, prelude, context):
            z = core.draw_initial_state(context.position_ids, None, prelude)
            for _ in range(3):
                z = core.recur(z, prelude, context)
            return z

    ours, logits = prefill(model, ids, mask, 4, student_endpoint(core, Exact()))
    theirs, expected = prefill(model, ids, mask, 4)
    assert isinstance(ours, TerminalPrefill) and ours.banks.keys() == theirs.banks.keys() == set(range(4))
    assert torch.allclose(logits, expected, atol=1e-12)
    for bank, pair in ours.banks.items():
        for a, b in zip(pair, theirs.banks[bank], strict=True):
            assert torch.allclose(a[0], b[0], atol=1e-12) and torch.allclose(a[1, :, 2:], b[1, :, 2:], atol=1e-12)
    shallow, _ = prefill(model, ids, mask, 4, teacher_endpoint(core, 1))
    assert not torch.allclose(shallow.banks[1][0], theirs.banks[1][0])


def test_the_student_learns_and_its_teacher_stays(tmp_path):
    run = distill(recipe_for(tmp_path, max_steps=40), progress=False)
    assert load_config(str(run)).depth == load_config(str(run / "model")).depth == recipe_for(tmp_path).teacher.depth
    rows = rows_of(run)
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]
    assert rows[-1]["hidden"] < rows[0]["hidden"] and rows[-1]["kl"] < rows[0]["kl"]
    # their sum, times the tokens, over the tokens: each rounded to float32
    eps = torch.finfo(torch.float32).eps
    assert rows[-1]["loss"] == pytest.approx(rows[-1]["hidden"] + rows[-1]["kl"], rel=2 * eps)
    teacher, saved = load_model("embedded", "float32")[0], load_model(str(run / "model"), "float32")[0]
    assert all(torch.equal(a, b) for a, b in zip(teacher.parameters(), saved.parameters(), strict=True))
    assert PrefillStudent.load(run / "model", saved).blocks[0].attn.q_proj.weight.shape == (128, 128)


def test_resuming_gives_the_run_that_never_stopped(tmp_path, monkeypatch):
    whole = distill(recipe_for(tmp_path, "whole", save_steps=3), progress=False)
    update = Distiller.update

    def die(self):
        if self.step == 4:
            raise RuntimeError("power cut")
        return update(self)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(module.Distiller, "update", die)
        distill(recipe_for(tmp_path, "cut", save_steps=3), progress=False)
    cut = distill(recipe_for(tmp_path, "cut", save_steps=3), resume=True, progress=False)
    one, other = student_of(whole), student_of(cut)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_teacher_that_has_changed_is_refused(tmp_path):
    teacher = tmp_path / "teacher"
    shutil.copytree(EMBEDDED, teacher)
    recipe = DistillRecipe.model_validate({**recipe_for(tmp_path).model_dump(), "teacher": {"path": str(teacher)}})
    checkpoint = tmp_path / "step_1"
    Distiller(recipe).save_model(checkpoint / "model")
    Distiller(recipe, checkpoint)
    model = load_model(str(teacher))[0]
    with torch.no_grad():
        model.model.core[0].mlp.up_proj.weight.mul_(1.5)
    model.save_pretrained(teacher)
    with pytest.raises(UserError, match="teacher.path: .*no longer the teacher .*up_proj.* differs"):
        Distiller(recipe, checkpoint)


def test_refusals(tmp_path):
    model = tiny_model()
    with pytest.raises(UserError, match="loop-rl distill"):
        PrefillStudent.load(tmp_path, model)
    PrefillStudent(model.model).save(tmp_path)
    other = tiny_model(intermediate_size=64)
    with pytest.raises(UserError, match="another model"):
        PrefillStudent.load(tmp_path, other)
    with pytest.raises(UserError, match="another model"):
        student_count(other.config, tmp_path)
    assert student_count(model.config, tmp_path) == sum(p.numel() for p in model.model.core.parameters())
    (tmp_path / STUDENT_FILE).write_bytes(b"cut short")
    with pytest.raises(UserError, match=f"{STUDENT_FILE} is damaged"):
        PrefillStudent.load(tmp_path, model)
    nothing = DistillRecipe.model_validate({"student": {"hidden_weight": 0, "kl_weight": 0}})
    with pytest.raises(UserError, match="nothing to learn"):
        distill(nothing)
