"""Sampling groups of completions, with the endpoint states that the learner reuses."""
