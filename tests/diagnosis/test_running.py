"""`diagnose`, `distill` and the benchmarks of inference as a user runs them, on the embedded model."""

import json

import pytest

from loop_rl.cli import main
from loop_rl.diagnosis.running import text_rows
from loop_rl.errors import UserError
from loop_rl.models.loading import load_model


def run(capsys, *argv):
    code = main(list(argv))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def distilled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    settings = ("train.max_steps=1", "train.batch_size=1", "data.problems=20", f"run.folder={folder}")
    assert main(["distill", "distill_embedded", *(word for one in settings for word in ("--set", one))]) == 0
    return folder / "distill_embedded"


def test_diagnose_prints_measures_and_writes(capsys, tmp_path):
    arguments = ("embedded", "--rows", "2", "--length", "16", "--threads", "1", "--out", str(tmp_path / "d"))
    code, out, err = run(capsys, "diagnose", *arguments)
    assert code == 0, err
    assert "perplexity by depth" in out and "reuse_neumann4" in out and "Terminal KV sharing" in out
    written = json.loads((tmp_path / "d" / "diagnosis.json").read_text())
    assert (written["model"], written["data"], written["depth"], written["rows"]) == ("embedded", "arithmetic", 6, 2)
    assert (tmp_path / "d" / "diagnosis.png").stat().st_size > 10_000
    code, out, _ = run(capsys, "diagnose", *arguments[:-2], "--depth", "3", "--format", "json")
    assert code == 0 and json.loads(out)["depth"] == 3


def test_rows_hold_questions_with_their_answers():
    _, tokenizer = load_model("embedded")
    rows = text_rows("arithmetic", None, tokenizer, 3, 64)
    assert rows.shape == (3, 64)
    assert tokenizer.decode(rows[0]).startswith("Question:") and "Answer: " in tokenizer.decode(rows[0])
    with pytest.raises(UserError, match="10000 rows of 64"):
        text_rows("arithmetic", None, tokenizer, 10000, 64)


def test_a_distilled_model_is_timed(capsys, distilled):
    sizes = ("--batch", "1", "--length", "64", "--runs", "1", "--threads", "1", "--depth", "5", "--format", "json")
    code, out, err = run(capsys, "bench", "prefill", str(distilled), *sizes)
    assert code == 0, err
    rows = json.loads(out)
    assert [row["prefill"] for row in rows][0] == "teacher, 5 recurrences" and rows[-1]["prefill"] == "student"
    code, _, err = run(capsys, "bench", "prefill", "embedded", *sizes)
    assert code == 2 and "loop-rl distill" in err
    code, _, err = run(capsys, "bench", "decode", "embedded", "--prompt", "2000")
    assert code == 2 and "made for 1024 tokens" in err


def test_decoding_is_timed_with_both_caches(capsys):
    sizes = ("--batch", "1", "--prompt", "4", "--tokens", "2", "--runs", "1", "--threads", "1", "--depth", "5")
    code, out, _ = run(capsys, "bench", "decode", "embedded", *sizes)
    assert code == 0 and "6.0" in out and "2.0" in out


def test_rollouts_of_a_run_read_their_prompts_with_the_student(capsys, distilled, tmp_path):
    settings = (
        f"model.path={distilled / 'model'}",
        f"run.folder={tmp_path}",
        "rollout.workers=0",
        "reward.workers=0",
        "rollout.prefill=student",
        "rollout.cache=terminal",
        "rollout.depth_tolerance=0.02",
        "optim.warmup_steps=0",
        "run.max_steps=1",
        "rollout.prompts_per_step=1",
        "data.eval_size=1",
        "eval.samples=1",
    )
    flags = [word for one in settings for word in ("--set", one)]
    code, _, err = run(capsys, "train", "quickstart_reuse_neumann4", *flags)
    assert code == 0, err
    (row,) = [
        json.loads(line) for line in (tmp_path / "quickstart_reuse_neumann4/metrics.jsonl").read_text().splitlines()
    ]
    assert 1 <= row["rollout/mean_depth"] <= 6
    assert "health/breached" in row
