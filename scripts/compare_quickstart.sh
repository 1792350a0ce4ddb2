#!/usr/bin/env bash
# The quickstart with every gradient estimator and several seeds, then their comparison. Two runs at a time, a thread
# each: about 15 minutes on two cores. SEEDS="0 1 2" bash scripts/compare_quickstart.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment plot
export OMP_NUM_THREADS=1
for seed in ${SEEDS:-0 1 2}; do
    for method in full_bptt reuse_neumann4 recompute_neumann4 reuse_neumann3 reuse_neumann3_tail; do
        name="compare/${method}_$seed"
        [ -e "runs/$name/checkpoints" ] || echo "$method $seed"
    done
done | xargs -P 2 -L 1 bash -c \
    'loop-rl train "quickstart_$0" --set run.seed="$1" run.name="${0}_$1" run.folder=runs/compare > /dev/null'
loop-rl report runs/compare --plot runs/compare/comparison.png
