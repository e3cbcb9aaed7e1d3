#!/usr/bin/env bash
# Writes constraints/*.txt: every package with its version and hashes, for all platforms and Pythons at once.
# Run it with `make lock`, after changing a dependency in pyproject.toml; `make lock UPGRADE=1` moves everything forward.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
UV=.venv/bin/uv
[ -x "$UV" ] || UV=uv
flags=(--quiet --universal --fork-strategy fewest --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate)
[ -z "${UPGRADE:-}" ] || flags+=(--upgrade)
"$UV" pip compile "${flags[@]}" --extra all pyproject.toml -o constraints/all.txt
echo 'uv>=0.9' | "$UV" pip compile "${flags[@]}" - -o constraints/bootstrap.txt

# What the images hold, at the same versions: without torch; with it; with FlashInfer too; and what torch needs beside
# CUDA, for images that bring a torch of their own.
extras=(--extra control --extra runtime --extra gateway --extra operator --extra build)
lock_image() { # NAME FLAG...
    local name=$1
    shift
    echo 'hatchling>=1.27' | "$UV" pip compile "${flags[@]}" --constraint constraints/all.txt "${extras[@]}" "$@" \
        pyproject.toml - -o "constraints/image-$name.txt"
}
lock_image base
lock_image worker --extra worker
lock_image worker-cuda --extra worker --extra flashinfer
# The compiler that builds FlashInfer's kernels into the image, of the release of CUDA's headers there
cuda_release=$(sed -n 's/^nvidia-cuda-runtime==\([^ ;]*\).*/\1/p' constraints/image-worker-cuda.txt)
printf '%s\n' "nvidia-cuda-crt==$cuda_release" "nvidia-cuda-nvcc==$cuda_release" "nvidia-nvvm==$cuda_release" |
    "$UV" pip compile "${flags[@]}" --no-deps - -o constraints/image-nvcc.txt
# FlashInfer and what its import needs beside the locked packages, for the tests that compare with it
printf '%s\n' apache-tvm-ffi einops flashinfer-python nvidia-ml-py tabulate |
    "$UV" pip compile "${flags[@]}" --no-deps --constraint constraints/image-worker-cuda.txt - -o constraints/flashinfer.txt
# of torch's own dependencies, those on CUDA are what a wheel for CPUs does without
cuda=(torch triton)
while read -r package; do cuda+=("$package"); done < <(sed -n 's/^\(\(nvidia\|cuda\)[a-z0-9-]*\)==.*/\1/p' constraints/image-worker.txt)
lock_image worker-deps --extra worker "${cuda[@]/#/--no-emit-package=}"
