"""The baseline of `bench overhead`, in a process of its own as a worker is: one thread and nothing else.

The process writes the 88M checkpoint if it isn't there. It then reads batch sizes from standard input, one a line, and
answers each with seconds an output token; both are JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from bench.engine_loop import BareLoop
from bench.product.worker import LLAMA_88M, load_engine, random_checkpoint

PROMPT_TOKENS, NEW_TOKENS = 128, 64


def main(argv: list[str]) -> None:
    """Serve measurements of a checkpoint until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m bench.bare_loop", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="directory of the 88M checkpoint")
    checkpoint = parser.parse_args(argv).checkpoint
    if not checkpoint.exists():
        random_checkpoint(checkpoint, LLAMA_88M, dtype=torch.bfloat16)
    engine = load_engine(
        checkpoint,
        max_batch_tokens=32 * PROMPT_TOKENS,
        dtype="bfloat16",
        num_pages=32 * (PROMPT_TOKENS + NEW_TOKENS) // 16,
    )
    prompt = [10 + i * 7 % 200 for i in range(PROMPT_TOKENS)]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        batch = json.loads(line)
        timing = BareLoop(engine, batch, PROMPT_TOKENS, NEW_TOKENS).run([prompt] * batch)
        sys.stdout.write(json.dumps(timing.per_token_s) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
