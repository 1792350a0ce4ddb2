"""The command line: what is accepted, what is refused and how, and that it only calls what it should."""

import argparse
import dataclasses
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import yaml

from loop_rl import cli, hub
from loop_rl.cli import build_parser, main
from loop_rl.commands import train
from loop_rl.interrupts import SIGNALS, Interrupted
from loop_rl.recipe.kinds import shipped
from loop_rl.recipe.rl import load_recipe
from loop_rl.training import job
from loop_rl.training import submission as submitting
from tests.damage import full_disk, write_parquet, write_safetensors, write_text, write_torch

ROOT = Path(__file__).parents[2]


def training_runs(monkeypatch, run):
    """Has `train` run something else."""
    monkeypatch.setattr(train, "COMMAND", dataclasses.replace(train.COMMAND, run=run))


def refused(capsys, *argv):
    """The one line on stderr of a command that must end with code 2."""
    assert main(list(argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("loop-rl: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_what_a_terminal_has_no_characters_for_is_a_question_mark(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    prints = SimpleNamespace(command="recipes", run=lambda arguments: print("\u2500 \ud800 1"))
    monkeypatch.setattr(cli, "build_parser", lambda: SimpleNamespace(parse_args=lambda argv: prints))
    monkeypatch.setattr(sys, "stdout", out)
    assert main([]) == 0
    out.flush()
    assert out.buffer.getvalue() == b"? ? 1\n"


# ---- parsing


@pytest.mark.parametrize(
    "argv",
    [
        "train r.yaml",
        "train r.yaml --set a.b=1 --set c.d=2 --resume",
        "train r.yaml --set a.b=1 c.d=2 --dry-run",
        "train --set a.b=1 c.d=2 r.yaml",
        "pretrain r.yaml --resume",
        "sft r.yaml --set a.b=1 c.d=2 --resume",
        "retrofit m out --prelude 0-3 --core 4 --coda 5-7 --depth 2 --injection ortho --data gsm8k --data-folder f",
        "eval runs/x --data gsm8k arithmetic --samples 8 --temperature 0 --size 10 --data-folder f --set a.b=1",
        "eval math500_eval --greedy --workers 2 --out f --format json",
        "report runs/x runs/y --baseline full_bptt --format md --plot a.png",
        "report --evals runs/x evals/y --format csv",
        "bench update --width 64 --depth 2 --batch 1 --length 8 --runs 1 --format json",
        "inspect embedded --batch 8 --length 64 --depth 3 --dtype bfloat16 --format json",
        "convert runs/x out --layout family --dtype float32",
        "recipes",
        "recipes list",
        "recipes show gsm8k_reuse_neumann4",
        "recipes copy gsm8k_reuse_neumann4 mine.yaml",
        "recipes validate a.yaml b.yaml",
        "submit r.yaml --address http://head:8265 --resume",
    ],
)
def test_commands_parse(argv):
    arguments = build_parser().parse_args(cli._repeat_set(argv.split()))
    assert callable(arguments.run)
    if "c.d=2" in argv:
        assert arguments.set == ["a.b=1", "c.d=2"]
        assert arguments.recipe == "r.yaml"


@pytest.mark.parametrize(
    "argv",
    [
        "",
        "trane x",
        "train",
        "bench update --depth x",
        "eval m --samples 0",
        "eval m --temperature hot",
        "report",
        "retrofit m out",
        "retrofit m out --core 5-3",
        "retrofit m out --core x",
    ],
)
def test_bad_arguments_end_with_code_2(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(argv.split())
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("loop-rl: ") and error.count("\n") == 1 and "invalid _" not in error


def commands(parser, name=()):
    """Every parser that has arguments of its own, with the words that call it."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from commands(below, (*name, word))


COMMANDS = dict(commands(build_parser()))


@pytest.mark.parametrize("name", [name for name in COMMANDS if name], ids=" ".join)
def test_every_command_teaches(name):
    """What it does, an example that parses and calls it, and of each option its meaning and its default."""
    parser = COMMANDS[name]
    assert parser.description
    label, *examples = parser.epilog.splitlines()
    assert label == "example:" and examples
    for line in examples:
        program, *argv = shlex.split(line)
        assert program == "loop-rl" and tuple(argv[: len(name)]) == name
        assert callable(build_parser().parse_args(argv).run)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        assert action.help, action.dest
        if action.nargs != 0 and action.default not in (None, [], range(0), argparse.SUPPRESS):
            assert f"default: {action.default}" in action.help, action.dest


def test_help_and_refusals_bring_no_heavy_library():
    script = (
        "import sys; from loop_rl.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "main(['report', 'no/such/run'])\n"
        "assert not {'torch', 'ray', 'transformers'} & set(sys.modules), 'heavy'"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


# ---- errors


def test_a_misspelt_key_is_one_line_with_the_nearest(capsys):
    message = refused(capsys, "train", "quickstart_reuse_neumann4", "--set", "optim.learning_rte=1e-6")
    assert "learning_rte" in message
    assert "optim.learning_rate" in message


@pytest.mark.parametrize("kind", ["train", "submit", "pretrain"])
def test_a_missing_recipe_names_the_nearest(kind, capsys):
    assert "nearest shipped recipe" in refused(capsys, kind, "quickstart_reuse_neuman4")


def test_a_recipe_of_the_other_kind_names_the_other_command(capsys):
    assert "loop-rl pretrain pretrain_embedded" in refused(capsys, "train", "pretrain_embedded")
    assert "loop-rl train gsm8k_tiny_reuse_neumann4" in refused(capsys, "pretrain", "gsm8k_tiny_reuse_neumann4")


def test_missing_run_and_model(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "no run folder" in refused(capsys, "report", str(tmp_path / "none"))
    message = refused(capsys, "train", "quickstart_full_bptt", "--dry-run", "--set", f"model.path={tmp_path}/none")
    assert "model.path" in message


def test_a_width_that_has_no_whole_heads(capsys):
    assert "multiple of 64" in refused(capsys, "bench", "update", "--width", "100")


def test_a_hub_that_does_not_answer_is_asked_once(capsys, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    asked = []
    monkeypatch.setattr(hub, "unreachable", lambda: asked.append(1) or "the hub does not answer")
    message = refused(capsys, "train", "quickstart_full_bptt", "--dry-run", "--set", "model.path=nobody/nothing")
    assert "model.path" in message and "the hub does not answer" in message
    assert len(asked) == 1


@pytest.mark.parametrize("text", ["[", "- a", "\xff"])
def test_a_damaged_recipe_in_a_run_folder(text, capsys, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.yaml").write_text(text, encoding="latin-1")
    resumed = ["--resume", "--set", f"run.folder={tmp_path}", "run.name=mine"]
    assert "recipe.yaml" in refused(capsys, "eval", str(tmp_path / "mine"))
    assert "recipe.yaml" in refused(capsys, "train", "quickstart_full_bptt", *resumed)
    assert "recipe.yaml" in refused(capsys, "pretrain", "pretrain_embedded", *resumed)


@pytest.mark.parametrize(
    ("interruption", "line"),
    [
        (Interrupted("stopped", resumable=True), "stopped; go on with: loop-rl train 'my run.yaml' --resume"),
        (Interrupted(), "interrupted before its first step; start again with: loop-rl train 'my run.yaml'"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_interruption_says_how_to_go_on(interruption, line, capsys, monkeypatch):
    def interrupted(arguments):
        raise interruption

    training_runs(monkeypatch, interrupted)
    assert main(["train", "my run.yaml"]) == 130
    assert capsys.readouterr().err == f"loop-rl: {line}\n"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts_whatever_a_command_does(number, capsys, monkeypatch):
    before = signal.getsignal(number)
    training_runs(monkeypatch, lambda arguments: os.kill(os.getpid(), number))
    assert main(["train", "quickstart"]) == 130
    assert capsys.readouterr().err == "loop-rl: interrupted\n"
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("argv", "code", "line"),
    [(["train", "quickstart"], 2, "add --resume to go on"), (["recipes"], 0, "")],
)
def test_a_reader_of_the_output_that_goes_ends_a_run_with_a_line(argv, code, line):
    """As `| head` does."""
    program = (
        "import dataclasses, sys; from loop_rl import cli; from loop_rl.commands import recipes, train\n"
        "def write(arguments): print('x', flush=True); sys.stdin.read(); print('x' * 100_000, flush=True)\n"
        "for one in (train, recipes): one.COMMAND = dataclasses.replace(one.COMMAND, run=write)\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, *argv]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout.readline() == "x\n"
        process.stdout.close()
        process.stdin.close()
        error = process.stderr.read()
    assert (process.returncode, error.count("\n")) == (code, 1 if line else 0), error
    assert line in error


def test_a_launcher_of_ranks_is_for_train_alone(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        assert main(["pretrain", "pretrain_embedded"]) == 2
        assert capsys.readouterr().err.count("loop-rl: pretrain runs in one process") == lines


def test_a_full_disk_is_a_message(capsys, monkeypatch):
    def full(arguments):
        raise OSError(28, "No space left on device", "runs/x/metrics.jsonl")

    training_runs(monkeypatch, full)
    assert refused(capsys, "train", "x") == "loop-rl: cannot write runs/x/metrics.jsonl: No space left on device\n"


@pytest.mark.parametrize("write", [write_torch, write_safetensors, write_parquet, write_text])
def test_a_full_disk_is_a_message_whichever_library_wrote(write, capsys, monkeypatch, tmp_path):
    training_runs(monkeypatch, lambda arguments: write(tmp_path))
    with full_disk():
        said = refused(capsys, "train", "x")
    assert said.startswith("loop-rl: cannot write ") and said.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 10 bytes."),
        torch.OutOfMemoryError("CUDA out of memory."),
    ],
)
def test_memory_that_is_refused_is_a_message(error, capsys, monkeypatch):
    monkeypatch.setattr("loop_rl.recipe.kinds.load_for", mock.Mock(side_effect=error))
    assert "out of memory" in refused(capsys, "pretrain", "pretrain_embedded")


def test_a_dry_run_refuses_workers_that_the_run_would(capsys):
    more = len(os.sched_getaffinity(0)) + 1
    message = refused(capsys, "train", "quickstart_full_bptt", "--dry-run", "--set", f"rollout.workers={more}")
    assert f"rollout.workers: {more} workers need a CPU each" in message


def test_a_dry_run_refuses_a_folder_that_the_run_would(capsys, tmp_path):
    (tmp_path / "taken" / "checkpoints").mkdir(parents=True)
    few = ["data.train_size=16", "data.eval_size=2", "rollout.workers=0", "reward.workers=0"]
    place = [f"run.folder={tmp_path}", "run.name=taken"]
    said = refused(capsys, "train", "quickstart_full_bptt", "--dry-run", "--set", *few, *place)
    assert "taken already holds a run" in said
    said = refused(capsys, "train", "quickstart_full_bptt", "--dry-run", "--resume", "--set", *few, *place)
    assert "there is no run to resume" in said


def test_a_dry_run_counts_the_questions_and_prints_a_recipe(capsys, tmp_path):
    (tmp_path / "more_test.jsonl").write_text('{"question": "1 + 1?", "answer": 2}\n' * 3)
    (tmp_path / "more_train.jsonl").write_text('{"question": "1 + 2?", "answer": 3}\n')
    sizes = ["data.train_size=16", "data.eval_size=2", f"eval.data=[{tmp_path}/more_train.jsonl]"]
    assert main(["train", "quickstart_full_bptt", "--dry-run", "--set", *sizes, "reward.workers=0"]) == 0
    out = capsys.readouterr().out
    assert f"# questions: 16 to train on, held out 2 of arithmetic, 3 of {tmp_path}/more_train.jsonl\n" in out
    assert yaml.safe_load(out)["data"]["train_size"] == 16


@pytest.mark.parametrize(
    "command", [["bench", "update"], ["bench", "decode", "embedded"], ["diagnose", "embedded"], ["retrofit", "x"]]
)
def test_a_depth_past_any_use_is_refused(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command, "--depth", "100000"])
    assert ended.value.code == 2 and "--depth: must be at most 1024 recurrences" in capsys.readouterr().err


def test_a_bug_is_not_taken_for_the_users_mistake(monkeypatch):
    training_runs(monkeypatch, lambda arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["train", "x"])


# ---- recipes


def test_every_shipped_recipe_is_listed_shown_and_valid(capsys):
    assert main(["recipes"]) == 0
    listed = capsys.readouterr().out
    for file in shipped():
        assert file.stem in listed
        assert main(["recipes", "show", file.stem]) == 0
        shown = yaml.safe_load(capsys.readouterr().out)
        assert shown["run"]["name"] == file.stem
    assert main(["recipes", "validate", *map(str, shipped())]) == 0


def test_a_copy_of_a_child_still_finds_its_base(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", "copy", "quickstart_full_bptt", "mine.yaml"]) == 0
    copied, original = load_recipe("mine.yaml"), load_recipe("quickstart_full_bptt")
    assert copied.learner == original.learner
    assert copied.rollout == original.rollout
    capsys.readouterr()
    assert "exists already" in refused(capsys, "recipes", "copy", "quickstart_full_bptt", "mine.yaml")


def test_validate_names_the_file(tmp_path, capsys):
    bad = tmp_path / "bad.yaml"
    bad.write_text("rollout: {num_generations: 1}\n")
    message = refused(capsys, "recipes", "validate", str(bad))
    assert str(bad) in message
    assert "group_size" in message


# ---- training and benchmarks are only called


def test_train_passes_recipe_and_resume(monkeypatch, capsys):
    seen = {}
    rl = SimpleNamespace(train=lambda recipe, **given: seen.update(given, recipe=recipe) or Path("runs/x"))
    monkeypatch.setitem(sys.modules, "loop_rl.training.rl", rl)
    assert main(["train", "quickstart_full_bptt", "--resume", "--set", "optim.learning_rate=1e-5"]) == 0
    assert seen["resume"] is True
    assert seen["recipe"].optim.learning_rate == 1e-5
    assert capsys.readouterr().out == "run folder: runs/x\n"


def test_bench_prints_a_table_or_json(monkeypatch, capsys):
    row = {"method": "reuse_neumann4", "seconds": 0.5, "ratio": 2.2, "peak_memory_mb": 10.0, "cosine": 0.99}
    seen = {}
    result = {"rows": [row], "learned_tokens": 512}
    bench = SimpleNamespace(bench_update=lambda **sizes: seen.update(sizes) or result)
    monkeypatch.setitem(sys.modules, "loop_rl.bench.update", bench)
    assert main(["bench", "update", "--format", "json", "--depth", "32"]) == 0
    assert json.loads(capsys.readouterr().out) == result
    assert seen == {"width": 512, "depth": 32, "batch": 4, "length": 256, "runs": 5}
    assert main(["bench", "update"]) == 0
    table = capsys.readouterr().out
    assert "reuse_neumann4" in table
    assert "2.20x" in table
    assert "512 tokens" in table


# ---- submit


def test_no_cluster_is_told_at_once(capsys):
    started = time.monotonic()
    message = refused(capsys, "submit", "quickstart_full_bptt", "--address", "http://127.0.0.1:9")
    assert "no Ray cluster answers at http://127.0.0.1:9" in message
    assert "ray start --head" in message
    assert time.monotonic() - started < 60


def test_files_that_are_here_get_their_whole_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "mine.jsonl").write_text("")
    changes = ["data.folder=data", "data.name=mine.jsonl", "model.path=owner/model", "eval.data=[mine.jsonl, gsm8k]"]
    recipe = submitting.for_cluster(load_recipe("quickstart_reuse_neumann3", changes))
    assert recipe.rollout.cluster == "auto"
    assert recipe.data.folder == str(tmp_path / "data")
    assert recipe.data.name == str(tmp_path / "mine.jsonl")
    assert recipe.eval.data == [str(tmp_path / "mine.jsonl"), "gsm8k"]
    assert recipe.model.path == "owner/model"  # a hub id
    assert load_recipe("quickstart_reuse_neumann3", ["run.name=x", "rollout.cluster=ray://a:1"]).rollout.cluster


def test_the_job_runs_the_resolved_recipe(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("LOOP_RL_DATA", "/data")
    monkeypatch.setenv("UNRELATED", "x")
    recipe = submitting.for_cluster(load_recipe("quickstart_reuse_neumann3", ["run.seed=5"]))
    variables = submitting.job_environment(recipe)
    assert (variables["NCCL_DEBUG"], variables["LOOP_RL_DATA"]) == ("INFO", "/data")
    assert "UNRELATED" not in variables
    # The other end, in this process: the job hands the same recipe to the command, and its exit code is the command's.
    seen = {}
    monkeypatch.setattr(job, "main", lambda argv: seen.update(argv=argv, recipe=load_recipe(argv[1])) or 7)
    monkeypatch.setenv(job.VARIABLE, variables[job.VARIABLE])
    command = submitting.entrypoint(resume=True).split()
    assert command[:4] == ["exec", "python", "-m", "loop_rl.training.job"]
    assert job.run(command[4:]) == 7
    assert (seen["argv"][0], seen["argv"][2:]) == ("train", ["--resume"])
    assert seen["recipe"] == recipe
    assert seen["recipe"].run.name == "quickstart_reuse_neumann3"
    assert job.VARIABLE not in os.environ


@pytest.mark.parametrize(
    ("status", "code", "expected"), [("SUCCEEDED", 0, 0), ("FAILED", 2, 2), ("FAILED", None, 1), ("STOPPED", None, 1)]
)
def test_the_jobs_exit_code(status, code, expected):
    assert submitting.exit_code(SimpleNamespace(status=status, driver_exit_code=code, message="")) == expected


def test_a_users_module_does_not_stand_before_a_package_of_the_project(tmp_path):
    (tmp_path / "rewards.py").write_text("raise RuntimeError('the wrong rewards')\n")
    done = subprocess.run(
        [sys.executable, "-m", "loop_rl", "eval", "embedded", "--data", "gsm8k", "--set", "data.folder=none"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert "the wrong rewards" not in done.stderr and done.returncode == 2, done.stderr
