"""The sizes of an engine where nobody sets them: in the worker's settings, EnginePools and engines made by tests."""

from __future__ import annotations

from typing import Final

PAGE_SIZE: Final = 16
"""Tokens of a KV page."""
KV_MEMORY_GIB: Final = 1
"""Memory for KV pages."""
NUM_EMBEDS: Final = 16_384
"""Embedding slots, one token each."""
NUM_SLOTS: Final = 16_384
"""Token slots."""
MAX_BATCH_TOKENS: Final = 4096
"""Tokens of one `forward` batch."""
MAX_BATCH_COMMANDS: Final = 512
"""Commands of one batch."""
LOGPROBS_LIMIT: Final = 20
"""Most probable tokens whose log-probabilities one `sample` may ask for."""
DESCRIPTION_CHARS: Final = 1024
"""Characters of a model's description, at most."""
CARD_CHARS: Final = 128
"""Characters of a model's version and of its license, at most."""
MAX_KEPT_ROWS: Final = 1 << 17
"""Rows of which a worker keeps the digest for the next control: a Hello holds them all, at 20 bytes each."""
