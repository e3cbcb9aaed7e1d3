"""One command that proves the GPU path on one card: `make gpu-proof`, and the bundle that it needs where nothing is."""
