"""The learner: Dr. GRPO as pure functions, scoring through a gradient estimator, and the update."""
