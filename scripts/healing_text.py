"""Writes a text to heal a retrofitted model on.

    python scripts/healing_text.py FILE [DATA]      DATA: a folder with gsm8k_train.jsonl

With DATA: 2,000 training questions of GSM8K and their worked answers. Without: as many generated problems, and this
project's own pages.
"""

import sys
from pathlib import Path

from loop_rl.data import load_dataset
from loop_rl.recipe import DataSection

QUESTIONS = 2000


def main() -> None:
    target, folder = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    settings = DataSection(name="gsm8k" if folder else "arithmetic", folder=folder, train_size=QUESTIONS)
    parts = [f"{example.prompt} {example.answer}" for example in load_dataset(settings).train]
    if folder is None:
        root = Path(__file__).parents[1]
        parts += [
            page.read_text(encoding="utf-8") for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]
        ]
    target.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
