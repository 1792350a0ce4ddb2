"""What a Ray job runs: `python -m loop_rl.training.job train [--resume]`, its recipe in the variable LOOP_RL_RECIPE."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from loop_rl.cli import main

VARIABLE = "LOOP_RL_RECIPE"


def run(argv: Sequence[str]) -> int:
    """Writes the recipe into a temporary file and runs the command on it; returns its exit code."""
    text = os.environ.pop(VARIABLE)  # popped: the run's own workers have no use for it
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recipe.yaml"
        file.write_text(text, encoding="utf-8")
        command, *options = argv
        return main([command, str(file), *options])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
