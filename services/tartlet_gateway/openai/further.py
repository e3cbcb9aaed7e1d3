"""Fields of other servers that would change a chat or a text completion, and that the gateway's own inferlet lacks.

An inferlet of the catalogue gets them, because it may know them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tartlet_gateway.openai.errors import not_offered

_OFF: Final[dict[str, tuple[Any, ...]]] = {
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "chat_template": ("",),
    "documents": ([],),
    "echo": (False,),
    "include_stop_str_in_output": (False,),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""The fields, each with the values besides null that ask for nothing."""


def check_further(fields: Mapping[str, Any]) -> None:
    """Refuse a field that would change the answer.

    Args:
        fields: the body's fields that the API doesn't know.

    Raises:
        ApiError: 400 with `param`.

    Example:
        >>> check_further({"bad_words": [], "echo": None, "user": "somebody"})
        >>> check_further({"use_beam_search": True})
        Traceback (most recent call last):
        tartlet_gateway.openai.errors.ApiError: use_beam_search is not offered by this server yet: leave it out.
    """
    for name, off in _OFF.items():
        value = fields.get(name)
        if value is not None and value not in off:
            raise not_offered(name)
