#!/usr/bin/env bash
# Runs the tests in .venv, which it makes where needed. Arguments go to pytest: bash scripts/test.sh tests/report -k plot
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment test,reasoning-gym
# One thread: the tests' tensors are small, and threads that wait for each other cost more than they bring.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec python -m pytest -q "$@"
