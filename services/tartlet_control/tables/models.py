"""The models that engines serve, in one or several forms, and which form programs get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from tartlet_common.engine.spec import EngineSpec
from tartlet_common.errors.registry import EngineMismatch, NoEngine, Overloaded, UnknownModel
from tartlet_control.tables.engines import EngineState

MODELS_BYTES: Final = 2 << 20
"""Limit of all specs together: runtimes are told all of them in one message, beside other things."""
MODELS_NAMED: Final = 20
"""Models that the error for an unknown model names."""
MAX_FORMS: Final = 8
"""Forms of one model that may be served at once. A pool serves two while it is rolled out in another form."""
AGREE: Final = ("model_digest", "page_size", "dtype", "traits", "vocab_size", "max_position", "tokenizer_digest")
"""Fields in which engines of one form of a model agree."""


class ServedModel:
    """A model in one form: its index in records (stable while control lives), and its engines."""

    __slots__ = ("engines", "forms", "index", "name", "spec", "spec_bytes")

    def __init__(self, index: int, spec: EngineSpec, forms: list[ServedModel]) -> None:
        self.index = index
        self.name = spec.model
        self.forms = forms  # all of the name, this one too
        self.engines: list[EngineState] = []
        self.take(spec)

    def take(self, spec: EngineSpec) -> None:
        """Take a new form in place of one that has no engines any more."""
        self.spec = spec
        self.spec_bytes = _spec_bytes(spec)

    @property
    def ready(self) -> bool:
        """Whether an engine takes new programs."""
        return any(e.status == "ready" for e in self.engines)

    def differs(self, spec: EngineSpec) -> str:
        """Return the first field in which `spec` isn't of this form; "" if it is."""
        return next((name for name in AGREE if getattr(self.spec, name) != getattr(spec, name)), "")

    def choose(self) -> EngineState:
        """Return the ready engine with the fewest programs.

        If the form has been replaced since the program asked for it, an engine that others still use is chosen.

        Raises:
            NoEngine: none is ready.
        """
        chosen = [e for e in self.engines if e.status == "ready"]
        if not chosen and any(form.ready for form in self.forms):
            chosen = [e for e in self.engines if e.program_ids]
        if not chosen:
            raise NoEngine
        return min(chosen, key=lambda e: len(e.program_ids))

    def info(self) -> dict[str, Any]:
        """Return what runtimes are told: the spec, with pools summed over the engines."""
        spec = asdict(self.spec)
        for field in ("num_pages", "num_embeds", "num_slots"):
            spec[field] = sum(getattr(e.spec, field) for e in self.engines) or spec[field]
        return {
            "index": self.index,
            "name": self.name,
            "spec_json": json.dumps(spec),
            "tokenizer_digest": self.spec.tokenizer_digest,
            "ready": self.ready,
            "engines": len(self.engines),
        }


class Models:
    """All models that engines have brought since control started.

    Engines of one name that don't agree (another checkpoint, another page size) serve the model in several forms.
    Programs get the form that was there first for as long as it has a ready engine, and the other forms stand by. So a
    pool is rolled out in another form without a gap: when the last engine of the old form is cordoned, the new form
    takes over.
    """

    def __init__(self) -> None:
        self._forms: dict[str, list[ServedModel]] = {}  # by name; of each, the longest served first
        self._list: list[ServedModel] = []  # by index

    def __iter__(self) -> Iterator[ServedModel]:
        """Yield the default first: ready models by name, then the others. Of one name, programs get the first.

        The order is by name because engines come in another order after each restart.
        """
        current = {name: _current(forms) for name, forms in self._forms.items()}
        for name in sorted(current, key=lambda name: (not current[name].ready, name)):
            yield current[name]
            yield from (m for m in self._forms[name] if m is not current[name])

    def join(self, spec: EngineSpec) -> ServedModel:
        """Return the model of a new engine, and make it for the first engine of a form.

        Raises:
            EngineMismatch: the model is served in too many other forms.
            Overloaded: the specs of all models would no longer fit a message.
        """
        forms = self._forms.get(spec.model, [])
        for form in forms:
            if form.engines and not form.differs(spec):
                return form
        unused = next((form for form in forms if not form.engines), None)
        if unused is None and len(forms) >= MAX_FORMS:
            field = forms[0].differs(spec)
            theirs, ours = getattr(spec, field), getattr(forms[0].spec, field)
            raise EngineMismatch(model=spec.model, field=field, theirs=theirs, ours=ours)
        if sum(m.spec_bytes for m in self._list if m is not unused) + _spec_bytes(spec) > MODELS_BYTES:
            raise Overloaded(what="bytes of specs in control's list of models", limit=MODELS_BYTES)
        if unused is None:
            forms = self._forms.setdefault(spec.model, forms)
            model = ServedModel(len(self._list), spec, forms)
            self._list.append(model)
        else:
            model = unused
            model.take(spec)
            forms.remove(model)
        forms.append(model)
        return model

    def stands_by(self, model: ServedModel) -> bool:
        """Return whether programs get another form of the model."""
        return _current(model.forms) is not model

    def named(self, name: str) -> ServedModel | None:
        """Return the model that a program asks for.

        The name "" stands for the default: the first by name of those with a ready engine, else of all.

        Raises:
            UnknownModel: no engine ever served a model of that name.
        """
        if name:
            forms = self._forms.get(name)
            if forms is None:
                raise self._unknown(name)
            return _current(forms)
        return next(iter(self), None)

    def at(self, index: int) -> ServedModel:
        """Return the model with this index.

        Raises:
            UnknownModel: there is none.
        """
        if index >= len(self._list):
            raise self._unknown(f"#{index}")
        return self._list[index]

    def _unknown(self, name: str) -> UnknownModel:
        served = [known for known, forms in self._forms.items() if any(form.engines for form in forms)]
        return UnknownModel(model=name, available=served[:MODELS_NAMED])


def _current(forms: list[ServedModel]) -> ServedModel:
    """Return the form that programs get: the first ready one, else the first with engines, else the newest."""
    ready = next((m for m in forms if m.ready), None)
    return ready or next((m for m in forms if m.engines), forms[-1])


def _spec_bytes(spec: EngineSpec) -> int:
    """Return about how many bytes a spec takes in a message."""
    return len(json.dumps(asdict(spec))) + len(spec.model) + 256
