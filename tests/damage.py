"""What may happen to a run folder: a disk that takes no more, and files that are damaged behind a fitting manifest."""

import contextlib
import resource
import shutil
from pathlib import Path

import pyarrow
import pyarrow.parquet
import torch
from safetensors.torch import save_file

from loop_rl.runs.checkpoints import checkpoint_step, save_checkpoint


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


def write_torch(folder: Path) -> None:
    torch.save({"a": torch.zeros(10_000)}, folder / "state.pt")


def write_safetensors(folder: Path) -> None:
    save_file({"a": torch.zeros(10_000)}, folder / "model.safetensors")


def write_parquet(folder: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"a": torch.rand(10_000).numpy()}), folder / "rows.parquet")


def write_text(folder: Path) -> None:
    (folder / "text").write_text("x" * 10_000)
