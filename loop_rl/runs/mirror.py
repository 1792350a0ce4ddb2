"""Metrics mirrored to wandb when the recipe asks for it."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import yaml

from loop_rl.errors import UserError, type_and_message
from loop_rl.extras import extra
from loop_rl.recipe.rl import Recipe
from loop_rl.runs.disk import write_whole, writing

log = logging.getLogger(__name__)

# The id of the run's wandb run, in the run folder: a resumed run goes on in the same one.
ID_FILE = "wandb_id"


class Mirror:
    """Metrics to a wandb run, or nowhere. What wandb fails at is counted and said once; the run goes on."""

    def __init__(self, run: Any = None) -> None:
        self.run, self.failures = run, 0

    def log(self, row: dict[str, Any], step: int) -> None:
        """Mirror a row of metrics; what is null is left out."""
        if self.run is None:
            return
        try:
            self.run.log({name: value for name, value in row.items() if value is not None}, step=step)
        except Exception as error:
            self.failures += 1
            if self.failures == 1:
                log.warning(
                    "wandb took no metrics at step %d (%s); they are in metrics.jsonl", step, type_and_message(error)
                )

    def metrics(self) -> dict[str, int]:
        """What the run's own metrics say of it: the rows that wandb did not take."""
        return {} if self.run is None else {"wandb/failures": self.failures}


def import_wandb() -> Any:
    """The package; UserError without it."""
    return extra("wandb", "wandb", "run.wandb, unless it is off,")


class mirrored:
    """Context of a Mirror: opens and finishes the wandb run that the recipe asks for.

    Raises UserError where there is none to be had, such as without the package or a key.
    """

    def __init__(self, recipe: Recipe, run: Path) -> None:
        self.recipe, self.folder, self.wandb = recipe, run, None

    def __enter__(self) -> Mirror:
        if self.recipe.run.wandb != "off":
            self.wandb = self._open()
        return Mirror(self.wandb)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.wandb is None:
            return
        try:
            self.wandb.finish(exit_code=0 if kind is None else 1)
        except Exception as error:
            log.warning("wandb did not finish its run (%s); all metrics are in metrics.jsonl", type_and_message(error))

    def _open(self) -> Any:
        wandb = import_wandb()
        file = self.folder / ID_FILE
        known = None
        with contextlib.suppress(OSError, UnicodeDecodeError):
            known = file.read_text(encoding="utf-8").strip() or None
        try:
            run = wandb.init(
                project="loop-rl",
                name=self.recipe.run.name,
                dir=self.folder,
                mode=self.recipe.run.wandb,
                config=yaml.safe_load(self.recipe.dump_yaml()),
                id=known,
                resume="allow",
            )
        except Exception as error:
            raise UserError(
                f"run.wandb: {type_and_message(error)}; run wandb login, or set run.wandb to off or offline"
            ) from error
        with writing(file):
            write_whole(file, f"{run.id}\n")
        return run
