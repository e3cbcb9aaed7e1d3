"""`tartlet simulate`: compares orders of programs on a simulated engine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from tartlet_common.errors.exit_codes import exit_code
from tartlet_common.errors.registry import InvalidArgument, TartletError
from tartlet_control.order.orders import LIVE, ORDERS, Order, usual_starved_at
from tartlet_control.placement.policies import PLACEMENTS, Placement
from tartlet_control.simulation import formats, load
from tartlet_control.simulation.compare import Row, compare, known
from tartlet_control.simulation.costs import Costs, read
from tartlet_control.simulation.figures import FIGURES, Setting
from tartlet_control.simulation.load import Trace
from tartlet_control.simulation.plot import svg

_DESCRIPTION = """\
Compare orders of programs on a simulated engine: mean and 99th percentile of the time from a program's arrival to its
end, also over those of srpt, which knows what each program still needs.
"""
_EXAMPLES = """\
Examples:
  tartlet simulate
  tartlet simulate --mix chat --load 1.1 --order fcfs --order plas
  tartlet simulate --trace programs.jsonl --json numbers.json
  tartlet simulate --engines 4 --programs 2000 --placement autellix
  tartlet simulate --costs costs.json --load 1.1
  tartlet simulate --memory-tokens 20000 --swap-us 5
  tartlet simulate --plot orders.svg --loads 0.8,0.95,1.1
  tartlet simulate --figure 15 --plot fleet.svg --mix chat --engines 64 --programs 20 --order plas
  tartlet simulate --journals journals/ --rescale --load 1.1
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the simulation that the arguments describe and print a table; returns the exit status."""
    try:
        args = _arguments(arguments)
    except (OSError, ValueError) as e:
        return _refused(InvalidArgument(argument="--costs", detail=str(e)))
    step = args.fixed_ms / 1e3, args.decode_us / 1e6, args.prefill_us / 1e6
    costs = Costs(*step, args.slots, args.every, args.memory_tokens, args.swap_us / 1e6)
    try:
        traces, past = _load(args, costs, args.load)
    except TartletError as e:
        return _refused(e)

    def make(name: str) -> Order:
        order = Order(name, starved_at=usual_starved_at(name) if args.beta is None else args.beta)
        if name == "gittins":
            known(past, order, costs)
        return order

    names = tuple(dict.fromkeys(args.order or LIVE))
    if args.figure:
        _plot(args, costs, names, make)
        return 0
    placement = Placement(args.placement)
    rows = compare(
        traces,
        names,
        costs,
        make,
        lambda name: _progress(f"{len(traces)} programs under {name} ..."),
        args.engines,
        placement,
    )
    engines = f", {args.engines} engines, {args.placement}" if args.engines > 1 else ""
    _print(rows, f"{len(traces)} programs, {args.slots} slots{engines}")
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if args.plot:
        args.json, args.figure = None, "12"
        _plot(args, costs, names, make)
    return 0


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the arguments; the costs in a file stand for those that aren't given."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.journals is not None:
        parser.error("--journals: only the command `tartlet simulate` replays journals; it passes on a --trace")
    if args.figure and not args.plot:
        parser.error("--figure: name a file for the figure with --plot")
    if args.costs is None:
        return args
    costs = read(args.costs)
    parser.set_defaults(
        fixed_ms=costs.fixed_s * 1e3,
        decode_us=costs.decode_s * 1e6,
        prefill_us=costs.prefill_s * 1e6,
        slots=costs.slots,
        every=costs.every,
        memory_tokens=costs.memory_tokens,
        swap_us=costs.swap_s * 1e6,
    )
    return parser.parse_args(arguments)


def _refused(error: TartletError) -> int:
    sys.stderr.write(f"{error.name}: {error.explained}\n")
    return exit_code(error)


def _plot(args: argparse.Namespace, costs: Costs, names: Sequence[str], make: Callable[[str], Order]) -> None:
    """Draw a figure."""
    title = f"{args.trace.name if args.trace else args.mix}, {args.slots} slots"

    def loaded(at: float, engines: int, programs: int) -> list[Trace]:
        some = argparse.Namespace(**vars(args) | {"engines": engines, "programs": programs})
        return _load(some, costs, at)[0][:programs]

    setting = Setting(
        title=title,
        names=names,
        make=make,
        costs=costs,
        loads=sorted({*args.loads}),
        engines=args.engines,
        placement=Placement(args.placement),
        programs=args.most if args.trace else args.programs,
        load=loaded,
        told=_progress,
    )
    drawing = FIGURES[args.figure](setting)
    args.plot.write_text(svg(drawing.title, drawing.x, drawing.panels, drawing.x_label))
    if args.json:
        args.json.write_text(json.dumps(asdict(drawing), indent=1) + "\n")


def _load(args: argparse.Namespace, costs: Costs, at: float) -> tuple[list[Trace], list[Trace]]:
    """Return the programs of a load, and past programs of the same kinds."""
    if args.trace:
        traces = _read(args.trace)[: args.most]
        if args.rescale or args.plot:
            work_s = sum(costs.served_s(trace) for trace in traces)
            traces = load.stretched(traces, work_s / at / args.engines)
        return traces, []
    rng = np.random.default_rng(args.seed)
    traces = load.generate(args.mix, args.programs, rng)
    mean_s = float(np.mean([costs.served_s(trace) for trace in traces]))
    return load.spaced(traces, mean_s / at / args.engines, rng), load.generate(args.mix, args.past, rng)


def _read(path: Path) -> list[Trace]:
    try:
        if path.suffix == ".csv":
            return formats.azure(path)
        return formats.read_mooncake(path) if formats.is_mooncake(path) else load.read(path)
    except OSError as e:
        raise InvalidArgument(argument="--trace", detail=f"{path}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise InvalidArgument(argument="--trace", detail=f"{path} is no text in UTF-8") from e
    except ValueError as e:
        raise InvalidArgument(argument="--trace", detail=str(e)) from e


def _print(rows: list[Row], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("order", "mean s", "p99 s", "ms a token", "preempted", "restored", "mean / srpt", "p99 / srpt"):
        table.add_column(column, justify="left" if column == "order" else "right")
    for row in rows:
        table.add_row(
            row.order,
            f"{row.mean_s:.1f}",
            f"{row.p99_s:.1f}",
            f"{1e3 * row.a_token_s:.1f}",
            str(row.preempted),
            str(row.restored),
            f"{row.mean_over_srpt:.2f}",
            f"{row.p99_over_srpt:.2f}",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _progress(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="tartlet simulate",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--mix", choices=list(load.MIXES), default="mixed", help="programs of Autellix 6.1 (default: mixed)")
    p.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="programs from a file instead: one JSON object a line, Mooncake's requests, or a CSV file of Azure's",
    )
    p.add_argument(
        "--journals", metavar="PLACE", help="recorded runs instead, from a directory of a runtime's journals"
    )
    p.add_argument("--most", type=_count, default=5000, help="first programs of a file (default: %(default)s)")
    p.add_argument("--rescale", action="store_true", help="let the programs of a file arrive at --load")
    p.add_argument("--plot", type=Path, metavar="FILE", help="draw a figure here, as SVG")
    p.add_argument(
        "--figure",
        choices=list(FIGURES),
        help="which of Autellix, for --plot, instead of the table: 12: mean response and time a token over loads (the "
        "default), 13: their tails, 14: placements, 15: rates of up to --engines engines, 16: programs that arrive at "
        "once, 18: equal steps",
    )
    p.add_argument("--loads", type=_loads, default=[0.5, 0.8, 0.95, 1.1], help="for --plot (default: 0.5,0.8,0.95,1.1)")
    p.add_argument("--programs", type=_count, default=500, help="how many (default: %(default)s)")
    p.add_argument("--past", type=_whole, default=2000, help="past programs that gittins knows (default: %(default)s)")
    p.add_argument(
        "--load", type=_positive, default=0.95, help="work that arrives over what fits (default: %(default)s)"
    )
    p.add_argument("--seed", type=int, default=1, help="of the programs and arrivals (default: %(default)s)")
    p.add_argument("--order", action="append", choices=list(ORDERS), help="an order; repeat for more (default: all)")
    p.add_argument(
        "--beta",
        type=_nonnegative,
        help="waiting over service at which a program has starved; 0: never (default: 64 for gittins, else 8)",
    )
    p.add_argument(
        "--costs", type=Path, metavar="FILE", help="an engine's, of `tartlet bench orders --costs FILE`; flags go first"
    )
    p.add_argument("--slots", type=_count, default=16, help="calls that a step takes (default: %(default)s)")
    p.add_argument("--every", type=_count, default=8, help="decode steps between decisions (default: %(default)s)")
    p.add_argument("--fixed-ms", type=_positive, default=10.0, help="fixed part of a step (default: %(default)s)")
    p.add_argument("--decode-us", type=_nonnegative, default=200.0, help="a decoded token (default: %(default)s)")
    p.add_argument("--prefill-us", type=_nonnegative, default=50.0, help="a prefilled token (default: %(default)s)")
    p.add_argument("--engines", type=_count, default=1, help="that share the load (default: %(default)s)")
    p.add_argument(
        "--placement", choices=list(PLACEMENTS), default="sticky", help="of programs or calls (default: %(default)s)"
    )
    p.add_argument(
        "--memory-tokens", type=_whole, default=0, help="tokens that an engine's memory holds (default: no limit)"
    )
    p.add_argument(
        "--swap-us", type=_nonnegative, default=0.0, help="a token to host memory or back; 0: it is computed again"
    )
    p.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here")
    return p


def _loads(text: str) -> list[float]:
    try:
        return [_positive(part) for part in text.split(",")]
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{text!r} are not numbers above 0 with commas between them") from e


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _whole(text: str) -> int:
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{number} is less than 0")
    return number


def _nonnegative(text: str) -> float:
    if not 0 <= (number := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return number


def _positive(text: str) -> float:
    if not 0 < (number := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
