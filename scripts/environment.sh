# Sourced by the scripts beside it, from the repository's root: makes .venv, or finds it complete, and activates it.
#   make_environment [EXTRAS]     EXTRAS as in pip, for example test,reasoning-gym
# PYTHON names the interpreter to use; otherwise the first of the usual names that is new enough is taken.
# A script that sources it answers --help with the comment at its own head.

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
    echo "usage: bash scripts/$(basename "$0")"
    awk 'NR == 1 && /^#!/ { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' \
        "$(dirname "${BASH_SOURCE[0]}")/$(basename "$0")"
    exit 0
fi

find_python() {
    local candidate found=""
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        found="$found $("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)"
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "loop-rl needs Python 3.11 or newer; found:${found:- none}. Install one, or name it: PYTHON=/path/to/python3.11 bash $0" >&2
    return 1
}

make_environment() {
    local extras="${1:-}" python stamp wanted
    if ! .venv/bin/python -c "" 2>/dev/null; then
        python="$(find_python)" || exit 1
        echo "making .venv with $python"
        rm -rf .venv
        if ! "$python" -c "import ensurepip" 2>/dev/null; then
            echo "$python has no ensurepip, so it can't make an environment; install its venv package (python3-venv on Debian and Ubuntu)" >&2
            exit 1
        fi
        "$python" -m venv .venv
    fi
    # The stamp is written last: an installation that was interrupted, or made for other requirements, goes on.
    stamp=".venv/complete-${extras//,/-}"
    wanted="$(cat pyproject.toml constraints.txt | .venv/bin/python -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())') $PWD"
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        echo "installing into .venv (about 2 GB with a CPU build of torch, a few minutes; once)"
        rm -f .venv/complete-*
        .venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt torch
        .venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e ".${extras:+[$extras]}"
        echo "$wanted" >"$stamp"
    fi
    export PATH="$PWD/.venv/bin:$PATH" HF_HUB_DISABLE_TELEMETRY=1
}
