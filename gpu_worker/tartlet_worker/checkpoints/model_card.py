"""Reads what a checkpoint's model card (README.md) says in its front matter. Imports no torch."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from tartlet_common.engine import defaults

log = logging.getLogger(__name__)

CARD: Final = "README.md"
_MOST_BYTES: Final = 64 << 10
_FENCE: Final = "---"


@dataclass(frozen=True, slots=True)
class Card:
    """What a model card says; "" for what the card doesn't say."""

    description: str
    version: str
    license: str


def read_card(path: Path) -> Card:
    """Return the card's `description`, `version` and `license`; "" for what the card doesn't say.

    The fields stand in YAML between two lines `---` at the card's head, as model hubs expect. A card that can't be read
    keeps no engine from serving: its fields are empty, and the worker's log says why. Longer texts are cut.

    Args:
        path: the checkpoint's directory.
    """
    said: object = {}
    try:
        with (path / CARD).open(encoding="utf-8") as card:
            head, *rest = card.read(_MOST_BYTES).split("\n")
        if head.rstrip() == _FENCE:
            lines = [line.rstrip() for line in rest]
            said = yaml.safe_load("\n".join(rest[: lines.index(_FENCE)]))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as e:
        log.warning("can't read the model card %s: %s", path / CARD, e)
    fields = said if isinstance(said, dict) else {}
    return Card(
        _text(fields.get("description"), defaults.DESCRIPTION_CHARS),
        _text(fields.get("version"), defaults.CARD_CHARS),
        _text(fields.get("license"), defaults.CARD_CHARS),
    )


def _text(value: object, most: int) -> str:
    """Return a scalar as text of at most `most` characters, "" for lists and objects."""
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return str(value).encode("utf-8", "replace").decode()[:most] if plain else ""
