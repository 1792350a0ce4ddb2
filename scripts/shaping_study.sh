#!/usr/bin/env bash
# What depth priors and injections do to fixed points: small models on the same tokens, then one table.
# Runs land in FOLDER (default runs/shaping); a run that is there already is kept, one that was cut off goes on.
#   bash scripts/shaping_study.sh [FOLDER] [SEEDS]      e.g. bash scripts/shaping_study.sh runs/shaping "0 1 2"
# 10 arms of 600 updates: about 3 minutes per arm and seed on one core.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
folder="${1:-runs/shaping}"
seeds="${2:-0 1 2}"

for seed in $seeds; do
    while read -r arm settings; do
        run="$folder/${arm}_seed$seed"
        if [ ! -d "$run/model" ]; then
            resume=""
            [ -f "$run/recipe.yaml" ] && resume="--resume"
            # shellcheck disable=SC2086
            loop-rl pretrain pretrain_shaping $resume --set run.folder="$folder" run.name="${arm}_seed$seed" train.seed="$seed" $settings
        fi
        [ -f "$run/diagnosis.json" ] || loop-rl diagnose "$run" --depth 5 --rows 32 --threads 1 --out "$run" >/dev/null
    done <<'ARMS'
pln5
fixed5_full prior.name=fixed train.backprop_depth=5
fixed5_truncated prior.name=fixed train.backprop_depth=2
learned_0 prior.learn=true prior.entropy_weight=0
learned_001 prior.learn=true prior.entropy_weight=0.01
learned_001_fast prior.learn=true prior.entropy_weight=0.01 prior.learning_rate=0.01
ortho model.injection=ortho
parcae model.injection=parcae
huginn_linear model.injection=huginn_linear
deq_qkv model.injection=deq_qkv
ARMS
done
loop-rl report "$folder"
