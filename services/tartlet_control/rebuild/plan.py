"""Which passes make the contents of page tables again, each shared prefix once (`plan`).

The plan is a function of what tables and embeds hold. It names tables by their lines and embeds by the program's ids.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from tartlet_control.tables.lineage import EmbedContent, Line


@dataclass(frozen=True, slots=True)
class Make:
    """A table to make: the first `keep` rows of `source`, which is made before, and rows of its own."""

    line: Line
    source: Line | None
    keep: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """A pass over a table: `tokens` from slot `start` on. `output`: the embed that takes the last one's output."""

    line: Line
    start: int
    tokens: list[int]
    output: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What makes a program's state again, in order, and the embeds whose content is lost, by the lost call."""

    parts: list[Make | Prefill]
    tokens: dict[int, tuple[int, int]]
    """Embeds that hold a token at a position."""
    ended: list[int]
    """Embeds that a skipped command marked."""
    lost: dict[int, str]

    @property
    def num_tokens(self) -> int:
        """How many tokens go through the layers."""
        return sum(len(part.tokens) for part in self.parts if isinstance(part, Prefill))


def plan(
    lines: Iterable[Line],
    embeds: dict[int, EmbedContent | None],
    chunk: int,
    page_size: int,
    there: Container[int] = (),
) -> Plan:
    """Plan the passes of plain tables.

    Args:
        lines: the tables.
        embeds: what each embed holds.
        chunk: most tokens of a pass.
        page_size: slots of a row.
        there: the rows, by identity, whose contents are there already.
    """
    made = Plan([], {}, [], {})
    outputs = _sort(embeds, made)
    makers: dict[int, Line] = {}  # by the identity of a row
    for line in lines:
        if not line.rows:
            continue
        keep = 0
        while keep < len(line.rows) and id(line.rows[keep]) in makers:
            keep += 1
        source = makers[id(line.rows[keep - 1])] if keep else None
        makers.update((id(row), line) for row in line.rows[keep:])
        made.parts.append(Make(line, source, keep))
        done = keep
        while done < len(line.rows) and id(line.rows[done]) in there:
            done += 1
        _prefill(line, min(done * page_size, line.length), outputs.pop(id(line), {}), chunk, made.parts, page_size)
    for wanted in outputs.values():  # of tables that are gone
        made.lost.update({embed: "forward_table" for ids in wanted.values() for embed in ids})
    return made


def _sort(embeds: dict[int, EmbedContent | None], made: Plan) -> dict[int, dict[int, list[int]]]:
    """Sort embeds by what they hold. Returns the wanted outputs: embeds by the slot, by the identity of the table."""
    outputs: dict[int, dict[int, list[int]]] = {}
    for embed, content in embeds.items():
        if content is None:
            continue
        match content:
            case ():
                made.ended.append(embed)
            case (call,):
                made.lost[embed] = call
            case (token, position):
                made.tokens[embed] = token, position
            case (line, slot, writes):
                if line.kept(slot, writes):
                    outputs.setdefault(id(line), {}).setdefault(slot, []).append(embed)
                else:
                    made.lost[embed] = "forward_table"
    return outputs


def _prefill(
    line: Line, start: int, outputs: dict[int, list[int]], chunk: int, parts: list[Make | Prefill], page_size: int
) -> None:
    """Append the passes of one table whose slots before `start` are there, ending where an output is wanted.

    If the output of a slot before `start` is wanted, the slots from there on are computed a second time.
    """
    at = min([start, *outputs])
    for stop in [*sorted(outputs), line.length - 1]:
        while at <= stop:
            to = min(at + chunk, stop + 1)
            first, *others = outputs.get(to - 1, [None])
            parts.append(Prefill(line, at, line.tokens(at, to, page_size), first))
            parts += [Prefill(line, to - 1, line.tokens(to - 1, to, page_size), embed) for embed in others]
            at = to
