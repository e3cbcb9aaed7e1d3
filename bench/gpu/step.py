"""Runs one step of the proof in this process, and writes its record as JSON whenever the step has learnt something."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from pathlib import Path

from bench.gpu.plan import STEPS
from bench.gpu.record import Record, Skip


def _shadow_flashinfer() -> None:
    """Let the rehearsal attend by the tests' shadow of FlashInfer, in torch."""
    import pytest

    from tests.worker import flashinfer_shadow

    flashinfer_shadow.install(pytest.MonkeyPatch())


def main() -> int:
    """Run the command line: 0 if the step passed or was skipped, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.step", description=__doc__)
    parser.add_argument("name", choices=[s.name for s in STEPS])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--without-flashinfer", action="store_true")
    args = parser.parse_args()
    record = Record(args.name, args.out, args.rehearse, args.without_flashinfer)
    record.write("running")
    (module,) = [s.module for s in STEPS if s.name == args.name]
    if args.rehearse:
        _shadow_flashinfer()
    try:
        importlib.import_module(f"bench.gpu.steps.{module}").run(record)
    except Skip as reason:
        record.write("skipped", reason=str(reason))
        return 0
    except Exception as error:  # noqa: BLE001 - whatever it is, the record says so
        record.write("failed", reason=repr(error), traceback=traceback.format_exc()[-4000:])
        traceback.print_exc()
        return 1
    if record.problems:
        record.write("failed", reason="; ".join(record.problems))
        return 1
    record.write("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
