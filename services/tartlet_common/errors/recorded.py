"""Errors of runs that are run again from their journals. Code imports them from `registry`."""

from __future__ import annotations

from tartlet_common.errors.base import TartletError
from tartlet_common.errors.base import register as _register


@_register(127)
class NotForkable(TartletError):
    message = "the recorded run can't go on live from there: {why}"
    remedy = "Fork it behind an earlier delivery, or with the models that the recorded run had."


@_register(132)
class NoJournal(TartletError):
    message = "program {program} has no journal here: {why}"
    remedy = "Launch it with a journal; those of programs that succeeded are kept with the runtime's keep_journals."


@_register(205)
class Diverged(TartletError):
    message = "replay diverged from the journal at wait {wait}: {detail}"
    remedy = "The program or its SDK has changed since the journal was written: launch the program anew."
