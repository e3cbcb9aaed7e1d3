"""The processes behind `tartlet replay`, `tartlet test` and `tartlet journals`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tartlet_common.bundles.layout import guest_text
from tartlet_common.errors.exit_codes import PROGRAM_FAILED, exit_code
from tartlet_common.errors.registry import Diverged, InvalidArgument, ProgramFailed, TartletError
from tartlet_protos import common_pb2
from tartlet_runtime.journal.records import JournalHeader, JournalRecord, Kind
from tartlet_runtime.timetravel import finding
from tartlet_runtime.timetravel.report import Outcome, Shown, recorded_end

if TYPE_CHECKING:
    from tartlet_runtime.timetravel.testing import Verdict

Work = Callable[[argparse.Namespace], int]
_RUN = "a file, a program's id (or its beginning), or redis://HOST:PORT/DB#ID"
_JOURNALS = "directory or redis:// URL of the journals; default: those of this machine's runtime, by its settings"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    args = _parser().parse_args(arguments)
    try:
        status: int = args.work(args)
    except TartletError as e:
        sys.stderr.write(f"{e.name}: {e.explained}\n")
        return exit_code(e)
    except BrokenPipeError:
        return PROGRAM_FAILED
    return status


def replay(args: argparse.Namespace) -> int:
    """Run a recorded program again."""
    found = finding.find(args.run, finding.place_of(args.journals))
    header, records = found.parsed.header, found.parsed.records
    end = recorded_end(records)
    deliveries = [record for record in records if record.kind == Kind.DELIVERY]
    until: int | None = args.until
    if until is not None and until > len(deliveries):
        raise InvalidArgument(argument="--until", detail=f"the journal has only {_deliveries(len(deliveries))}")
    source = finding.source(args.source) if args.source else header.source
    header = replace(header, source=source, args=tuple(args.args) if args.args else header.args)
    if args.native:
        if header.language == common_pb2.Source.WASM:
            raise InvalidArgument(argument="--native", detail="this run's program is a WebAssembly module")
        from tartlet_runtime.timetravel import native

        outcome = native.run(
            header, deliveries, guest_text(source), header.args, until=until, debug=not args.no_debugger
        )
        if args.no_debugger and outcome.failure:
            sys.stderr.write(outcome.failure + "\n")
    else:
        outcome = _in_sandbox(header, deliveries, until, found.parsed.header.source)
    if outcome.diverged is not None:
        raise outcome.diverged
    sys.stderr.write(outcome.closing_line(end) + "\n")
    return PROGRAM_FAILED if outcome.failure else 0


def _in_sandbox(header: JournalHeader, deliveries: list[JournalRecord], until: int | None, recorded: bytes) -> Outcome:
    from tartlet_runtime.timetravel.rerun import Rerun, sandbox

    shown = Shown(sys.stdout, sys.stderr)
    outcome = Outcome(total=len(deliveries))
    with sandbox() as box:
        box.check(header, recorded)
        rerun = Rerun(header, deliveries[:until], on_command=shown)
        try:
            box.run(rerun, header.source)
        except Diverged as e:
            outcome.diverged = e
        if rerun.ended and rerun.at < len(deliveries[:until]):
            outcome.diverged = Diverged(
                wait=rerun.at + 1, detail=f"the program ended, the journal goes on{rerun.where()}"
            )
    outcome.told, outcome.ended, outcome.text = rerun.at, rerun.ended, rerun.text
    shown.end_line()
    if rerun.error is not None and outcome.diverged is None:
        failed = isinstance(rerun.error, ProgramFailed)
        outcome.failure = str(rerun.error.fields["traceback"]) if failed else f"{rerun.error.name}: {rerun.error}"
        sys.stderr.write(outcome.failure.rstrip("\n") + "\n")
    elif rerun.ended:
        shown.result(rerun.text)
    return outcome


def test(args: argparse.Namespace) -> int:
    """Run recorded runs against new versions of their programs."""
    from tartlet_runtime.timetravel.rerun import sandbox
    from tartlet_runtime.timetravel.testing import compare, runs_of

    sources = {path.name: finding.source(path) for path in args.file}
    verdicts: list[Verdict] = []
    with sandbox() as box:
        for path, found in runs_of(args.dir, list(sources)):
            verdicts.append(compare(box, path, found, sources[Path(found.parsed.header.filename).name]))
            _print_verdict(verdicts[-1], as_json=args.as_json)
    if not verdicts:
        names = ", ".join(sources)
        raise InvalidArgument(argument="DIR", detail=f"{args.dir} has no journal of a program named {names}")
    counts = {status: sum(v.status == status for v in verdicts) for status in dict.fromkeys(v.status for v in verdicts)}
    sys.stderr.write(", ".join(f"{count} {status}" for status, count in counts.items()) + "\n")
    return 0 if set(counts) == {"same"} else PROGRAM_FAILED


def _print_verdict(verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(asdict(verdict) | {"path": str(verdict.path)}, ensure_ascii=False) + "\n")
        return
    lines = [f"{verdict.program_id}  {verdict.status}, {_deliveries(verdict.deliveries)}"]
    if verdict.status == "can't tell":
        lines.append(f"  {verdict.was}")
    elif verdict.status != "same":
        lines.append(f"  recorded: {verdict.was}")
        lines.append(f"  now:      {verdict.now}{f', at {verdict.line}' if verdict.line else ''}")
    sys.stdout.write("\n".join(lines) + "\n")


def list_(args: argparse.Namespace) -> int:
    """Print the journals of a directory."""
    place = finding.place_of(args.journals)
    if place.url:
        raise InvalidArgument(argument="--journals", detail="only a directory's journals can be listed")
    for _, found in finding.all_in(place.directory):
        header, records = found.parsed.header, found.parsed.records
        end = recorded_end(records)
        deliveries = sum(record.kind == Kind.DELIVERY for record in records)
        told = {
            "program_id": header.program_id,
            "program": header.name or header.filename,
            "start": header.start_ns / 1e9,
            "deliveries": deliveries,
            "bytes": len(found.data),
            "end": None if end is None else str(end),
        }
        if args.as_json:
            sys.stdout.write(json.dumps(told, ensure_ascii=False) + "\n")
        else:
            end_text = told["end"] or "no end"
            count = _deliveries(deliveries)
            sys.stdout.write(f"{header.program_id}  {told['program']}  {count}  {end_text}\n")
    return 0


def _deliveries(count: int) -> str:
    return f"{count} {'delivery' if count == 1 else 'deliveries'}"


def export(args: argparse.Namespace) -> int:
    """Write a journal to a file."""
    found = finding.find(args.run, finding.place_of(args.journals))
    finding.export(found, args.file)
    return _say(found, f"written to {args.file}")


def trace(args: argparse.Namespace) -> int:
    """Write the calls of a directory's runs as a trace."""
    from tartlet_runtime.timetravel.calls import trace_of
    from tartlet_runtime.timetravel.rerun import Rerun, sandbox

    place = finding.place_of(args.journals)
    if place.url:
        raise InvalidArgument(argument="--journals", detail="a trace is made of a directory's journals")
    found = sorted((each.parsed for _, each in finding.all_in(place.directory)), key=lambda p: p.header.start_ns)
    lines = []
    with sandbox() as box:
        for parsed in found:
            header = parsed.header
            rerun = Rerun(header, [record for record in parsed.records if record.kind == Kind.DELIVERY])
            try:
                box.check(header, header.source)
                box.run(rerun, header.source)
            except TartletError as e:
                sys.stderr.write(f"journal of {header.program_id} left out: {e.name}: {e.explained}\n")
                continue
            told = trace_of(rerun, found[0].header.start_ns)
            if told is None:
                sys.stderr.write(f"journal of {header.program_id} left out: the run computed nothing\n")
                continue
            lines.append(json.dumps(told) + "\n")
    if not lines:
        detail = f"{place} has no journal of a program that computed anything, and that can be run again"
        raise InvalidArgument(argument="--journals", detail=detail)
    args.file.write_text("".join(lines))
    sys.stderr.write(f"{len(lines)} of {len(found)} runs written to {args.file}\n")
    return 0


def import_(args: argparse.Namespace) -> int:
    """Put a journal from a file where a runtime's journals are."""
    found, place = finding.read(args.file), finding.place_of(args.journals)
    finding.store(found, place)
    return _say(found, f"stored in {place}")


def _say(found: finding.Found, where: str) -> int:
    told = sum(record.kind == Kind.DELIVERY for record in found.parsed.records)
    sys.stderr.write(f"journal of {found.parsed.header.program_id}, {_deliveries(told)}, {where}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tartlet", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    places = argparse.ArgumentParser(add_help=False)
    places.add_argument("--journals", metavar="PLACE", help=_JOURNALS)

    made = _command(commands, "replay", replay, [places], _REPLAY)
    made.add_argument("run", metavar="RUN", help=_RUN)
    made.add_argument(
        "args", metavar="ARGS", nargs="*", help="other arguments of the program than it was launched with"
    )
    made.add_argument("--native", action="store_true", help="outside the sandbox, as an ordinary program under pdb")
    made.add_argument("--no-debugger", action="store_true", help="with --native: without pdb")
    made.add_argument("--until", type=_count, metavar="N", help="stop behind N deliveries; with --native in pdb")
    made.add_argument(
        "--source",
        metavar="FILE",
        type=Path,
        help="run this version of the program, a file or a directory; it may add, and change nothing",
    )

    made = _command(commands, "test", test, [], _TEST)
    made.add_argument("dir", metavar="DIR", type=Path, help="directory of journals, or one journal")
    made.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        nargs="+",
        help="new versions of programs, files or directories; names tell whose",
    )
    made.add_argument("--json", dest="as_json", action="store_true", help="print JSON, a line for each run")

    form = argparse.RawDescriptionHelpFormatter
    journals = commands.add_parser("journals", description=_JOURNALS_TEXT, allow_abbrev=False, formatter_class=form)
    kinds = journals.add_subparsers(required=True, metavar="COMMAND")
    made = _command(kinds, "list", list_, [places], "List the journals of a directory.")
    made.add_argument("--json", dest="as_json", action="store_true", help="print JSON, a line for each journal")
    made = _command(kinds, "export", export, [places], "Write a run's journal to a file of this user's.")
    made.add_argument("run", metavar="RUN", help=_RUN)
    made.add_argument("file", metavar="FILE", type=Path)
    made = _command(kinds, "trace", trace, [places], _TRACE)
    made.add_argument("file", metavar="FILE", type=Path)
    made = _command(kinds, "import", import_, [places], "Put a journal from a file where a runtime keeps journals.")
    made.add_argument("file", metavar="FILE", type=Path)
    return parser


def _command(
    commands: Any, name: str, work: Work, parents: Sequence[argparse.ArgumentParser], text: str
) -> argparse.ArgumentParser:
    text, _, examples = text.partition("\n\n")
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        description=text,
        epilog=examples,
        parents=parents,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(work=work)
    return made


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("give a number of deliveries, at least 1")
    return count


_REPLAY = """\
Run a recorded program again from its journal, without an engine. The program is told what it was told then, at the
times at which it was told; commands other than those of then end the replay in Diverged.

Examples:
  tartlet replay 283e694e                      # its beginning is enough
  tartlet replay failed.journal --native       # step through it in pdb, outside the sandbox
  tartlet replay failed.journal --native --until 40
  tartlet replay redis://127.0.0.1:6379/0#283e694e-96ab-42db-8c9b-5c53089bca41
  tartlet replay failed.journal --source fixed.py
  tartlet replay failed.journal --fork 12 --source fixed.py   # goes on live: see `tartlet replay --fork 1 --help`"""
_TEST = """\
Run recorded runs against a new version of their program, without an engine. Each run is compared command by command:
the report has the first that the recorded version gave otherwise, and its line. The exit status is 1 if any run isn't
the same.

Examples:
  tartlet test journals/ agent.py              # the runs of programs whose file was agent.py
  tartlet test failed.journal agent.py --json"""
_TRACE = """\
Write the calls of a directory's runs as a trace for `tartlet simulate`: each run is replayed, and its calls' tokens and
pauses are noted. `tartlet simulate --journals PLACE` does both at once. A run that can't be replayed is left out.

Examples:
  tartlet journals trace programs.jsonl
  tartlet simulate --trace programs.jsonl --rescale --load 1.1"""
_JOURNALS_TEXT = """\
List, export and import the journals of runs, or make a trace of them. A journal holds all that its program was told.

Examples:
  tartlet journals list
  tartlet journals export 283e694e failed.journal
  tartlet journals import failed.journal --journals redis://127.0.0.1:6379/0

With --server or --kube, export and import use the journals of a running server:
  tartlet journals export 283e694e failed.journal --kube --namespace production
  tartlet journals export --server local --help"""

if __name__ == "__main__":
    sys.exit(main())
