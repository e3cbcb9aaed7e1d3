#!/usr/bin/env bash
# Runs a command as a named stage: says its name before and its time after, and exits as it did.
# Usage: tools/stage.sh NAME COMMAND [ARGUMENT...]
set -uo pipefail
name=$1
shift
printf '== %s\n' "$name"
start=$(date +%s%N)
"$@"
status=$?
spent=$((($(date +%s%N) - start) / 100000000))
verdict=ok
[ "$status" -eq 0 ] || verdict="failed with status $status"
printf '== %s: %d.%d s, %s\n' "$name" "$((spent / 10))" "$((spent % 10))" "$verdict"
exit "$status"
