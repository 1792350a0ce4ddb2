"""loop-rl: reinforcement-learning post-training of looped language models from saved rollout states."""

__version__ = "0.1.0"
