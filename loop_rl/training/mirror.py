"""Metrics mirrored to wandb when the recipe asks for it."""

from pathlib import Path
from typing import Any

import yaml

from loop_rl.recipe import Recipe


class Mirror:
    """Metrics to wandb, or nowhere."""

    def __init__(self, run: Any = None) -> None:
        self.run = run

    def log(self, row: dict[str, Any], step: int) -> None:
        if self.run is not None:
            self.run.log({name: value for name, value in row.items() if value is not None}, step=step)


class mirrored:
    """Context of a Mirror: opens and finishes the wandb run that the recipe asks for."""

    def __init__(self, recipe: Recipe, run: Path) -> None:
        self.recipe, self.folder, self.wandb = recipe, run, None

    def __enter__(self) -> Mirror:
        if self.recipe.run.wandb != "off":
            import wandb

            self.wandb = wandb.init(
                project="loop-rl",
                name=self.recipe.run.name,
                dir=self.folder,
                mode=self.recipe.run.wandb,
                config=yaml.safe_load(self.recipe.dump_yaml()),
            )
        return Mirror(self.wandb)

    def __exit__(self, *_: object) -> None:
        if self.wandb is not None:
            self.wandb.finish()
