"""What is missing of an extra's packages: one line with the extra to install, before anything is measured or run."""

import sys

import pytest

from loop_rl.cli import main


@pytest.mark.parametrize(
    ("package", "argv", "extra"),
    [
        ("matplotlib.figure", ["diagnose", "embedded", "--out", "out"], "plot"),
        ("trl", ["sft", "sft_arithmetic"], "sft"),
        ("wandb", ["train", "quickstart_full_bptt", "--dry-run", "--set", "run.wandb=online"], "wandb"),
    ],
)
def test_a_missing_package_is_one_line(package, argv, extra, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert f"pip install 'loop-rl[{extra}]'" in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())
