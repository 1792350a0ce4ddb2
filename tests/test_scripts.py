"""The scripts: --help says what each does, and does nothing else."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.py")))
def test_help_of_a_program(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(SCRIPTS / script), "--help"])
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    assert not stopped.value.code
    assert f"usage: {script}" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.sh")))
def test_help_of_a_shell_script(script, tmp_path):
    shutil.copytree(SCRIPTS, tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        ["bash", f"scripts/{script}", "--help"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    first, *said = done.stdout.splitlines()
    assert first == f"usage: bash scripts/{script}" and said and not any(line.startswith("#") for line in said)
    assert sorted(tmp_path.rglob("*")) == before
