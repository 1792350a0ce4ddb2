"""One run of any trainer in its folder: opened or resumed, told about while it works, asked to stop, and ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from loop_rl.runs.checkpoints import checkpoint_step, save_checkpoint
from loop_rl.runs.disk import writing
from loop_rl.runs.folder import RunRecipe, checkpoint_to_resume, publish_model, run_folder, say_finished, start_run
from loop_rl.runs.folder import warn_of_schedule as warn_of_length
from loop_rl.runs.lock import run_lock
from loop_rl.runs.mirror import Mirror, mirrored
from loop_rl.runs.progress import Progress
from loop_rl.runs.rows import append_row
from loop_rl.runs.stop import StopRequests, stop_requests

T = TypeVar("T")


class Ranks(Protocol):
    """What is asked of the processes that share a run; see loop_rl.learner.ranks."""

    main: bool

    def from_main(self, make: Callable[[], T]) -> T: ...


class Run:
    """A run and its folder; see `open_run`.

    checkpoint: what to go on from, None to start from the beginning. finished: nothing is left to do. stop, progress:
    inside `working`. mirror: of metrics to wandb, inside `mirrored`.
    """

    stop: StopRequests
    progress: Progress

    def __init__(
        self,
        recipe: RunRecipe,
        section: str = "run",
        shown: bool = True,
        unit: str = "step",
        unmeasured: Callable[[int], Collection[str]] = lambda step: (),
    ) -> None:
        """section: of the recipe, has max_steps, save_steps, keep_checkpoints and threads. The rest: see `open_run`."""
        self.recipe, self.folder, self.shown, self.unit = recipe, run_folder(recipe), shown, unit
        self.section, self.settings, self._unmeasured = section, getattr(recipe, section), unmeasured
        self.checkpoint: Path | None = None
        self.finished = False
        self.saved: Path | None = None
        self.torn = False
        self.mirror = Mirror()

    def over(self, step: int) -> bool:
        """Whether nothing is left to train or to measure after this step."""
        return step >= self.settings.max_steps and not self._unmeasured(step)

    def say_finished(self) -> None:
        """Tells the user that there is nothing to do."""
        assert self.checkpoint is not None
        say_finished(self.folder, self.checkpoint, self.settings.max_steps)

    def warn_of_schedule(self) -> None:
        """For a learning rate that follows the run's length: says so where it is resumed with another one."""
        if self.checkpoint is not None:
            warn_of_length(self.folder, f"{self.section}.max_steps", self.settings.max_steps)

    def start(self, device: torch.device, step: int) -> None:
        """Writes what the folder holds from the start, and takes away what comes after the checkpoint's step."""
        start_run(self.folder, self.recipe, device, None if self.checkpoint is None else step)

    @contextlib.contextmanager
    def mirrored(self) -> Iterator[None]:
        """Mirrors metrics to the wandb run that the recipe asks for; UserError where there is none to be had."""
        with mirrored(self.recipe, self.folder) as self.mirror:
            yield

    @contextlib.contextmanager
    def working(self, step: int, at_once: bool = False, bar: bool = True) -> Iterator[None]:
        """Shows the progress from this step on, and takes signals as requests to stop; see StopRequests, Progress."""
        self.progress = Progress(self.settings.max_steps, step, self.shown, unit=self.unit, bar=bar)
        with self.progress, stop_requests(f"the {self.unit} under way", at_once) as self.stop:
            yield

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """A step's change of the weights with its row, which no request to stop cuts in half.

        What breaks it off all the same (a fault, a third signal) leaves `torn` set: weights and rows no longer fit, so
        that nothing is to be saved of them.
        """
        self.torn = True
        with self.stop.whole():
            yield
            self.torn = False

    def write(self, row: dict[str, Any]) -> dict[str, Any]:
        """Adds the row to metrics.jsonl; returns it as written. UserError where the disk refuses."""
        file = self.folder / "metrics.jsonl"
        with writing(file):
            return append_row(file, row)

    def tell(self, row: dict[str, Any], text: str, more: str = "") -> None:
        """A row that is written goes to wandb, and to the user as `text`; a line has room for `more`."""
        self.mirror.log(row, row["step"])
        self.progress.step(row["step"], text, more)

    def due(self, step: int) -> bool:
        """Whether the recipe asks for a checkpoint after this step, beside the last one's."""
        every = self.settings.save_steps
        return bool(every) and step % every == 0

    def save(self, step: int, save: Callable[[Path], None]) -> Path:
        """The complete checkpoint of this step, written through `save(path)` unless this process has already."""
        if self.torn:
            raise RuntimeError(f"weights and rows do not fit after step {step}")
        if self.saved is None or checkpoint_step(self.saved) != step:
            with self.stop.whole():
                keep = self.settings.keep_checkpoints
                self.saved = save_checkpoint(self.folder / "checkpoints", step, save, keep)
        return self.saved

    def publish(self, checkpoint: Path, beside: Collection[str] = ()) -> bool:
        """Makes the checkpoint's model the run's; see `publish_model`."""
        return publish_model(self.folder, checkpoint, beside)

    def stopped(self, step: int) -> KeyboardInterrupt:
        """What a run raises that was asked to stop, once its checkpoint is saved."""
        kept = "no checkpoint was saved" if self.saved is None else f"{self.saved} is complete"
        return KeyboardInterrupt(f"stopped after {self.unit} {step}; {kept}")


@contextlib.contextmanager
def open_run(
    recipe: RunRecipe,
    may_change: Collection[str],
    resume: bool,
    *,
    section: str = "run",
    ranks: Ranks | None = None,
    shown: bool = True,
    unit: str = "step",
    unmeasured: Callable[[int], Collection[str]] = lambda step: (),
) -> Iterator[Run]:
    """The recipe's run, its folder held against every other process; of several ranks the main one opens it for all.

    Args:
        may_change: keys and sections of the recipe that decide no result.
        section: of the recipe, has the run's length.
        shown: whether progress is shown. unit: what a step is called.
        unmeasured: names what is left to measure at a step, such as an evaluation.

    Raises:
        UserError: a folder in use, nothing to resume, or a recipe that differs in a key that decides results.
        Interrupted: in place of KeyboardInterrupt.
    """
    run = Run(recipe, section, shown, unit, unmeasured)
    if run.settings.threads is not None:
        torch.set_num_threads(run.settings.threads)

    def opened() -> tuple[str | None, bool]:
        found = checkpoint_to_resume(run.folder, recipe, may_change, resume)
        return (None, False) if found is None else (str(found), run.over(checkpoint_step(found)))

    with run_lock(run.folder, wanted=ranks is None or ranks.main):
        checkpoint, run.finished = opened() if ranks is None else ranks.from_main(opened)
        run.checkpoint = run.saved = None if checkpoint is None else Path(checkpoint)
        yield run
