"""Loss and residual of a looped model by depth, on held-out text: what `loop-rl diagnose` measures, the quick part.

    python scripts/by_depth.py runs/mine

Losses are in nats per token, of 4 rows of 128 tokens; depths 1 to 8.
"""

import argparse

import torch

from loop_rl.diagnosis.convergence import tokenwise_changes
from loop_rl.diagnosis.running import text_rows
from loop_rl.learner.language import token_losses
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.loading import load_model

DEPTHS, ROWS, LENGTH = 8, 4, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="a run folder, a model's folder or hub id, or embedded")
    parser.add_argument(
        "data", nargs="?", metavar="DATA", help="a folder with gsm8k_test.jsonl (default: arithmetic is read)"
    )
    arguments = parser.parse_args()
    path, folder = arguments.model, arguments.data
    model, tokenizer = load_model(path)
    ids = text_rows("gsm8k" if folder else "arithmetic", folder, tokenizer, ROWS, LENGTH)
    losses = []

    def visit(_: int, z: torch.Tensor) -> None:
        losses.append(float(token_losses(model, model.model.coda_forward(z, context, prelude), ids).mean()))

    with torch.no_grad():
        context = PaddedContext(model.config, torch.ones_like(ids), dtype=model.dtype, depth=DEPTHS)
        prelude = model.model.prelude_forward(ids, context)
        z0 = model.model.draw_initial_state(context.position_ids, None, prelude)
        changes, _ = tokenwise_changes(lambda z: model.model.recur(z, prelude, context), z0, DEPTHS, visit)
    print("depth     " + "".join(f"{depth:8}" for depth in range(1, DEPTHS + 1)))
    print("loss      " + "".join(f"{loss:8.3f}" for loss in losses))
    # the first change is relative to z0, which a retrofitted model has at 0
    print("residual  " + f"{'':8}" + "".join(f"{float(change.median()):8.4f}" for change in changes[1:]))


if __name__ == "__main__":
    main()
