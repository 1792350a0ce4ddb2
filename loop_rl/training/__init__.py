"""Training: the RL loop, language-model pretraining and its depth prior, checkpoints."""
