"""Released looped checkpoints: Huginn, the Recurrent retrofits, Ouro and Parcae, read into our one model and back."""

from loop_rl.models.families.load import FAMILIES, find_family, load_checkpoint, looped_config, read_config
from loop_rl.models.families.save import family_state, save_family_checkpoint

__all__ = [
    "FAMILIES",
    "family_state",
    "find_family",
    "load_checkpoint",
    "looped_config",
    "read_config",
    "save_family_checkpoint",
]
