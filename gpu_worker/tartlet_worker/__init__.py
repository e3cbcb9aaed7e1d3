"""The worker: weights, KV pages and sampling on the device, one batch after another."""
