# Shared by the scripts that need an environment of their own: `make_venv EXTRA` makes .venv, or leaves it as it is.
# Sourced, not run; expects to be in the repository's root.

# The version that is installed where there is no torch yet; with this pin pip never looks for anything newer.
TORCH_PIN="torch==2.13.0"

# Packages are compiled as they are first imported (all of them would take two minutes). Where a container forbids to keep
# what was compiled, each process would compile torch anew: seconds, thousands of times in the tests.
unset PYTHONDONTWRITEBYTECODE

make_venv() {
    local extra=$1 stamp wanted
    stamp=.venv/.installed-$extra
    wanted=$(cat pyproject.toml scripts/_venv.sh | cksum)
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
        return
    fi
    if [ ! -x .venv/bin/pip ]; then
        find_python
        echo "Making .venv (once)" >&2
        "$PYTHON" -m venv .venv
    fi
    echo "Installing gradwatch[$extra] into .venv; the first time this takes minutes" >&2
    .venv/bin/python -c "import torch" 2>/dev/null || .venv/bin/python -m pip install -qq --disable-pip-version-check --no-compile "$TORCH_PIN"
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-compile -e ".[$extra]"
    echo "$wanted" >"$stamp"
}

# Sets PYTHON to the first Python on PATH that is new enough.
find_python() {
    for PYTHON in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if "$PYTHON" -c "import sys; sys.exit(sys.version_info < (3, 10))" 2>/dev/null; then
            return
        fi
    done
    echo "Error: Python 3.10 or newer is needed, and PATH has none; found $(python3 --version 2>&1)" >&2
    exit 2
}
