#!/usr/bin/env bash
# Runs the tests in .venv, which it makes where needed. Arguments go to pytest: bash scripts/test.sh tests/report -k plot
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment test,reasoning-gym
# One thread: the tests' tensors are small, and threads that wait for each other cost more than they bring.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# All of them: in two processes per core, for many wait; tests/conftest.py says which belong together.
[ $# -gt 0 ] || set -- -n $((2 * $(nproc) < 8 ? 2 * $(nproc) : 8)) --dist loadfile --no-loadscope-reorder
exec python -m pytest -q "$@"
