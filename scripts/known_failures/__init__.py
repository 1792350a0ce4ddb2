"""What `check_known_failures.py` runs: a function for each case, by area; each yields what it saw of every variant."""

from known_failures import answers, models, objective, runs, tokens

# by the file that a case stands in, since both tables count from 1
CHECKS = {
    "known_failures_2.jsonl": {**answers.COLLECTED, **models.COLLECTED, **tokens.COLLECTED, **runs.COLLECTED},
    "known_failures.jsonl": {**answers.EARLIER, **objective.EARLIER, **runs.EARLIER},
    "math_pairs.jsonl": {"math_pairs": answers.table_pairs},
}
