"""Data sets by name: made on the spot, public ones from a folder or the hub, or the user's own."""

from loop_rl.data.examples import DataSettings, Example, Splits
from loop_rl.data.load import default_stop, load_dataset
from loop_rl.data.names import NAMES, default_reward
from loop_rl.data.sources import data_file

__all__ = ["NAMES", "DataSettings", "Example", "Splits", "data_file", "default_reward", "default_stop", "load_dataset"]
