"""What may happen to a run folder: a disk that takes no more, and files that are damaged behind a fitting manifest."""

import contextlib
import resource
import shutil
from pathlib import Path

from loop_rl.training.checkpoints import checkpoint_step, save_checkpoint


@contextlib.contextmanager
def full_disk(size: int = 4096):
    """No file of this process may grow beyond `size` bytes: the libraries' own errors, without a disk to fill."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def seal_again(checkpoint: Path) -> None:
    """Give a checkpoint a manifest that fits whatever is there."""

    def save(folder: Path) -> None:
        for path in checkpoint.iterdir():
            if path.name != "manifest.json":
                shutil.copytree(path, folder / path.name) if path.is_dir() else shutil.copy(path, folder)

    save_checkpoint(checkpoint.parent, checkpoint_step(checkpoint), save, keep=2)
