"""Verifiable rewards in TRL's signature: plain functions, usable without the rest of the project."""

from rewards.choice import choice_reward
from rewards.gsm8k import gsm8k_reward, gsm8k_strict_reward
from rewards.math500 import math500_reward

__all__ = ["choice_reward", "gsm8k_reward", "gsm8k_strict_reward", "math500_reward"]
