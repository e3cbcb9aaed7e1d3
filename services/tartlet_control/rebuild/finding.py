"""What a command finds in the book of its program: marks that skip it, or that what it takes is not there. Pure."""

from __future__ import annotations

from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import InvalidArgument, UnknownResource
from tartlet_control.calls.embed import EmbedTxt
from tartlet_control.calls.forward import Forward
from tartlet_control.calls.output import GetNextDist, Sample
from tartlet_control.calls.tables import Share
from tartlet_control.tables.lineage import Book
from tartlet_control.tables.programs import Command


def reads_ended(book: Book, command: Command) -> bool:
    """Return whether a command reads a slot or an embed that a skipped command or a stop token has marked."""
    if isinstance(command, EmbedTxt):
        held = [book.slots.get(slot) for slot in command.sources] if command.from_slots else []
        return any(content is not None and content[1] for content in held)
    if isinstance(command, Forward):
        return any(book.embeds.get(embed) == () for embed in command.iemb)
    if isinstance(command, Sample):
        return book.embeds.get(command.embed) == ()
    return isinstance(command, GetNextDist) and any(book.embeds.get(embed) == () for embed in command.embeds)


def refusal(share: Share) -> TartletError | None:
    """Return why a share gets no rows, or None. All that was submitted to its source's queue before is in the book."""
    queue, by = share.queue, share.by
    if queue.poison is not None:
        return queue.poison.error
    line = queue.place.book.tables.get(by.source)
    if line is None:
        return UnknownResource(kind="table", id=by.source)
    if by.keep_tokens // queue.spec.page_size > len(line.rows):
        detail = f"{by.keep_tokens} are more than the {len(line.rows)} rows of table {by.source} hold"
        return InvalidArgument(argument="keep_tokens", detail=detail)
    return None
