#!/usr/bin/env bash
# Makes .venv ready: the locked packages, Tartlet itself (editable), the guest component and, where there is a compiler,
# the runtime's C shim and the worker's C kernels, which are optional. Needs Python 3.11 or later and a network; uses
# `uv` from PATH, else fetches it into .venv first.
#
# Each step leaves a stamp that holds a digest of its inputs, so that a second run does nothing.
# PYTHON=/path/to/python chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.venv
STAMPS=$VENV/.stamps
unset VIRTUAL_ENV PYTHONHOME PYTHONPATH # another environment, active in this shell, is not ours

say() { printf 'setup: %s\n' "$*" >&2; }

digest() { # of the files and folders named that exist
    # shellcheck disable=SC2012
    for path in "$@"; do [ ! -e "$path" ] || find "$path" -type f ! -name '*.pyc' -print0; done |
        LC_ALL=C sort -z | xargs -0 cksum | cksum
}

stale() { # STAMP INPUT...: true unless STAMP was left for just these inputs
    local stamp=$STAMPS/$1
    shift
    [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$(digest "$@")" ]
}

leave() { # STAMP INPUT...
    local stamp=$STAMPS/$1
    shift
    mkdir -p "$STAMPS"
    digest "$@" >"$stamp"
}

timed() { # NAME COMMAND...: says how long the step took
    local name=$1 start=$SECONDS
    shift
    say "$name ..."
    "$@"
    say "$name: $((SECONDS - start)) s"
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
        # a name may be a shim for a version that is not installed, so it has to answer
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    say "no Python 3.11 or later found${PYTHON:+ at PYTHON=$PYTHON}; install one, or name it: make setup PYTHON=/path/to/python3"
    exit 1
}

find_uv() {
    local candidate
    for candidate in "$VENV/bin/uv" uv; do
        if "$candidate" --version >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
}

make_venv() { # prints nothing; leaves $VENV/bin/python, and $VENV/bin/uv where no uv was found
    local python
    python=$(find_python)
    if [ -n "$(find_uv)" ]; then
        "$(find_uv)" venv --quiet --allow-existing --python "$python" "$VENV"
        return
    fi
    say "uv is not on PATH: fetching it into $VENV"
    if ! "$python" -m venv "$VENV"; then
        say "$python cannot make virtual environments; install its venv package (Debian: apt install python3-venv) or uv"
        exit 1
    fi
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints/bootstrap.txt
}

install_locked() { # from wheels alone, so that no compiler is needed
    "$UV" pip install --quiet --python "$VENV/bin/python" --no-build --require-hashes -r constraints/all.txt
}

install_tartlet() {
    # hatchling is among the locked packages, so that building needs no network and no unlocked package
    "$UV" pip install --quiet --python "$VENV/bin/python" --no-deps --no-build-isolation -e .
}

install_flashinfer() { # in a folder of its own and without its dependencies on CUDA, for the tests that compare with it
    "$UV" pip install --quiet --python "$VENV/bin/python" --target "$VENV/flashinfer" --no-deps --no-build \
        --require-hashes -r constraints/flashinfer.txt
}

compile_packages() { # once, whatever PYTHONDONTWRITEBYTECODE says: without bytecode, importing torch takes twice as long
    # torch brings files for later Pythons, which this one can't compile, and nobody imports
    "$VENV/bin/python" -m compileall -q -j 0 "$VENV"/lib/python*/site-packages >/dev/null || true
}

compile_sources() { # the same for what is imported from the checkout; at once where nothing has changed
    "$VENV/bin/python" -m compileall -q services gpu_worker operator protos inferlets/sdk/python || true
}

build_kernels() { # at most a few seconds: the worker's C kernels; without a compiler torch does their work
    [ -f gpu_worker/tartlet_worker/kernels/build.py ] || return 0
    local said
    said=$("$VENV/bin/python" -m tartlet_worker.kernels.build)
    case $said in *'not built'*) say "$said" ;; esac
}

build_guest() { # says only what it has to do, as it comes: a pipe through grep and sed would hold it back
    "$VENV/bin/python" -m tartlet_runtime.guests.build | while IFS= read -r line; do
        case $line in *'up to date'*) ;; *) say "$line" ;; esac
    done
}

if ! "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    timed "environment" make_venv
fi
UV=$(find_uv)
if [ -z "$UV" ]; then # .venv is there, made with a uv that has gone
    make_venv
    UV=$(find_uv)
fi
if stale packages constraints/all.txt "$VENV/pyvenv.cfg"; then
    timed "locked packages (several GB the first time)" install_locked
    leave packages constraints/all.txt "$VENV/pyvenv.cfg"
fi
if stale flashinfer constraints/flashinfer.txt "$VENV/pyvenv.cfg"; then
    timed "FlashInfer's sources" install_flashinfer
    leave flashinfer constraints/flashinfer.txt "$VENV/pyvenv.cfg"
fi
if stale bytecode "$STAMPS/packages"; then
    timed "bytecode of the packages" compile_packages
    leave bytecode "$STAMPS/packages"
fi
if stale tartlet pyproject.toml "$STAMPS/packages"; then
    timed "tartlet" install_tartlet
    leave tartlet pyproject.toml "$STAMPS/packages"
fi
# These two key what they make by digest themselves, in the user's cache, so they are asked every time and answer at once.
build_kernels
build_guest
compile_sources
