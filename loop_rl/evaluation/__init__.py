"""Held-out evaluation: sample every question several times, score, and estimate pass@1 and pass@k."""

from loop_rl.evaluation.evaluate import EvalResult, evaluate
from loop_rl.evaluation.pass_at_k import pass_at_k
from loop_rl.evaluation.record import record_evaluation
from loop_rl.reward.function import load_reward
from loop_rl.reward.reward import Reward, Rewards, RewardSpec, reward_spec
from loop_rl.reward.scorer import LocalScorer

__all__ = [
    "EvalResult",
    "LocalScorer",
    "Reward",
    "RewardSpec",
    "Rewards",
    "evaluate",
    "load_reward",
    "pass_at_k",
    "record_evaluation",
    "reward_spec",
]
