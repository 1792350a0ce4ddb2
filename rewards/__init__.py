"""Verifiable rewards in TRL's signature: plain functions, usable without the rest of the project."""

from rewards.gsm8k import gsm8k_reward, gsm8k_strict_reward

__all__ = ["gsm8k_reward", "gsm8k_strict_reward"]
