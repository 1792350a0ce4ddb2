"""Looped models. Importing this package registers them with transformers' Auto classes."""

from transformers import AutoConfig, AutoModelForCausalLM

from loop_rl.models.config import LoopedConfig
from loop_rl.models.families import load_checkpoint, save_family_checkpoint
from loop_rl.models.looped import LoopedForCausalLM, LoopedModel

AutoConfig.register("looped", LoopedConfig, exist_ok=True)
AutoModelForCausalLM.register(LoopedConfig, LoopedForCausalLM, exist_ok=True)

__all__ = ["LoopedConfig", "LoopedForCausalLM", "LoopedModel", "load_checkpoint", "save_family_checkpoint"]
