#!/usr/bin/env bash
# Writes constraints/*.txt: every package with its version and hashes, for all platforms and Pythons at once.
# Run it with `make lock`, after changing a dependency in pyproject.toml; `make lock UPGRADE=1` moves everything forward.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
UV=.venv/bin/uv
[ -x "$UV" ] || UV=uv
flags=(--quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate)
[ -z "${UPGRADE:-}" ] || flags+=(--upgrade)
"$UV" pip compile "${flags[@]}" --extra all pyproject.toml -o constraints/all.txt
echo 'uv>=0.9' | "$UV" pip compile "${flags[@]}" - -o constraints/bootstrap.txt
