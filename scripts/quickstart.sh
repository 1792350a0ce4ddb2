#!/usr/bin/env bash
# Trains the embedded model on arithmetic word problems by RL from saved rollout states, then prints the run's report.
# Makes .venv where needed. Arguments go to the training: bash scripts/quickstart.sh --set run.max_steps=5
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment
recipe=quickstart_reuse_neumann4
# Run again after an interruption, it goes on where it stopped; after the end, it only reports.
resume=()
if [ -e "runs/$recipe/recipe.yaml" ]; then resume=(--resume); fi
echo "starting; the first bar may take half a minute"
loop-rl train "$recipe" ${resume[@]+"${resume[@]}"} "$@"
loop-rl report "runs/$recipe"
