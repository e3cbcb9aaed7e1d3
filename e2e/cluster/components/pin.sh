#!/usr/bin/env bash
# Writes go.mod and go.sum anew for another version of Kubernetes: components/pin.sh v1.36.3. Takes seconds.
# k8s.io/kubernetes replaces its staging modules by local paths; here each is pinned to its published v0.x twin.
set -euo pipefail
version=${1:?usage: components/pin.sh vX.Y.Z}
cd "$(dirname "$0")"
rm -f go.mod go.sum
go mod init tartlet.dev/e2e/cluster
upstream=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
go mod edit -require="k8s.io/kubernetes@$version"
for module in $(sed -n 's/^\s*\(k8s.io\/[^ ]*\) => .\/staging.*/\1/p' "$upstream"); do
    go mod edit -replace="$module=$module@v0${version#v1}"
done
go mod tidy
