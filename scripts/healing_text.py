"""Writes a text to heal a retrofitted model on.

    python scripts/healing_text.py text.txt ~/data

With DATA: 2,000 training questions of GSM8K and their worked answers. Without: as many generated problems, and this
project's own pages.
"""

import argparse
from pathlib import Path

from loop_rl.data import load_dataset
from loop_rl.recipe.rl import DataSection

QUESTIONS = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE", type=Path, help="the text to write")
    parser.add_argument(
        "data", nargs="?", metavar="DATA", help="a folder with gsm8k_train.jsonl (default: none, generated problems)"
    )
    arguments = parser.parse_args()
    target, folder = arguments.file, arguments.data
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
