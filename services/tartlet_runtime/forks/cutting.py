"""Cuts a recorded journal behind one of its deliveries, and says what a fork of it is launched as. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tartlet_common.abi import decode
from tartlet_common.capabilities import SHARED, Grant
from tartlet_common.errors.registry import (
    InvalidArgument,
    InvalidSource,
    MalformedSubmission,
    NotAllowed,
    UnsupportedAbi,
)
from tartlet_protos import common_pb2, programs_pb2
from tartlet_runtime.journal.records import JournalHeader, JournalRecord, Kind, ParsedJournal
from tartlet_runtime.program.rerun import Rerun

_RECORDED = " of the recorded run"
_LIMITS = ("memory_bytes", "cpu_slice_s", "pages", "commands_in_flight", "output_bytes", "journal_bytes", "deadline_s")


@dataclass(frozen=True, slots=True)
class Past:
    """The past of a fork: the recorded run up to one of its deliveries."""

    header: JournalHeader
    records: Sequence[JournalRecord]

    def rerun(self, now_ns: int) -> Rerun:
        """Return what a fork's guest is told first. Its time goes on from there at `now_ns` of the wall clock."""
        return Rerun.of(self.records, now_ns - self.header.start_ns - self.elapsed_ns)

    @property
    def elapsed_ns(self) -> int:
        """The guest's time at the last record, since its start."""
        return max((record.clock_ns for record in self.records), default=0)


def cut(parsed: ParsedJournal, deliveries: int) -> Past:
    """Return a run's records up to its delivery number `deliveries`, counted from 1.

    Raises:
        InvalidArgument: the journal has fewer deliveries.
        InvalidSource: a record makes no sense. A client may have uploaded it, and control would be told it.
    """
    records: list[JournalRecord] = []
    told = 0
    for record in parsed.records:
        if told == deliveries:
            break
        told += record.kind == Kind.DELIVERY
        _check(record)
        records.append(replace(record, read_to=0))
    if told < max(1, deliveries):
        detail = f"{deliveries}; the journal has {told} deliveries, and a fork begins behind one of them"
        raise InvalidArgument(argument="fork.deliveries", detail=detail)
    return Past(parsed.header, records)


def _check(record: JournalRecord) -> None:
    """Refuse a record that can't be told again. Raises InvalidSource."""
    try:
        if record.kind == Kind.DELIVERY:
            decode(record.delivery, limit=len(record.delivery))
        else:
            Rerun.of([record])
    except (MalformedSubmission, UnsupportedAbi, ValueError, TypeError, LookupError) as e:
        raise InvalidSource(detail=f"a record of the journal makes no sense: {e}") from e


def launch_of(past: Past, asked: programs_pb2.LaunchSpec) -> programs_pb2.LaunchSpec:
    """Return the launch of a fork: what was asked for, and of everything else what the recorded run had.

    Raises:
        NotAllowed: the recorded run can't be run again in the sandbox.
        InvalidArgument: a field of the launch is set that a fork can't have.
    """
    header = past.header
    if header.language == common_pb2.Source.NATIVE:
        raise NotAllowed(what="a fork of a run outside the sandbox")
    if asked.inferlet or asked.seed:
        argument = "inferlet" if asked.inferlet else "seed"
        raise InvalidArgument(argument=argument, detail="a fork has the recorded run's")
    if not asked.durable or asked.durability == "off":
        raise InvalidArgument(argument="durability", detail="a fork keeps a journal, because it begins from one")
    launch = programs_pb2.LaunchSpec()
    launch.CopyFrom(asked)
    launch.seed = header.seed
    launch.model, launch.pool = asked.model or header.model, asked.pool or header.pool
    if not asked.args:
        launch.args.extend(header.args)
    if not (asked.source.data or asked.source.digest):
        launch.source.CopyFrom(common_pb2.Source(data=header.source))
    launch.source.language = header.language  # type: ignore[assignment]  # a number of the enumeration
    launch.source.filename = header.filename
    launch.limits.CopyFrom(limits_of(past, asked.limits))
    return launch


def limits_of(past: Past, asked: common_pb2.Limits) -> common_pb2.Limits:
    """Return a fork's limits: those asked for, else the recorded run's. Its deadline counts from the fork on."""
    wanted = common_pb2.Limits()
    for name in _LIMITS:
        setattr(wanted, name, getattr(asked, name) or past.header.limits.get(name, 0))
    if wanted.deadline_s:
        wanted.deadline_s += past.elapsed_ns / 1e9
    return wanted


def grants_of(past: Past, launch: Sequence[Grant]) -> tuple[Grant, ...]:
    """Return a fork's grants: its launch's, and what the recorded run's say about what programs share and start.

    Hosts and secrets are those of the launch alone.

    Raises:
        InvalidSource: a grant of the journal makes no sense. A client may have uploaded it.
    """
    grants = list(launch)
    try:
        for told in past.header.grants:
            had = Grant.from_json(told)
            place = had.place.removesuffix(_RECORDED) + _RECORDED
            shared = {what: getattr(had, what) for what in SHARED}
            grants += [Grant.of(place, own.http, own.secrets, **shared) for own in launch if had.limits_sharing]
    except (InvalidArgument, AttributeError, LookupError, TypeError, ValueError) as e:
        raise InvalidSource(detail=f"a grant of the journal makes no sense: {e}") from e
    return tuple(dict.fromkeys(grants))
