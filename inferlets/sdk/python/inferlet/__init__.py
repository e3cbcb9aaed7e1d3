"""The SDK that inferlets import: forward passes, sampling and KV pages by name."""
