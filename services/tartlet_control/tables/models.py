"""The models that engines serve, in one or several forms, and which form programs get."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, replace
from typing import Any, Final

from tartlet_common.engine.pools import ANYWHERE, EVERYONES_HOME, OWN, Home, Reach
from tartlet_common.engine.spec import EngineSpec
from tartlet_common.errors.registry import EngineMismatch, Overloaded, UnknownModel, UnknownPool
from tartlet_control.tables.engines import EngineState

MODELS_BYTES: Final = 2 << 20
"""Limit of all specs together: runtimes are told all of them in one message, beside other things."""
OWNERS_BYTES: Final = 512 << 10
"""Limit of the specs of one tenant's engines, so that no tenant's engines keep out the others'."""
OWNERS_ENGINES: Final = 512
"""Most engines of one tenant: each change of an engine costs time that grows with their number."""
MODELS_NAMED: Final = 20
"""Models, or pools, that the error for an unknown one names."""
MAX_FORMS: Final = 8
"""Forms of one model that may be served at once. A pool serves two while it is rolled out in another form."""
AGREE: Final = (
    "model_digest", "page_size", "dtype", "traits", "live_adapters", "adapters", "vocab_size", "max_position",
    "tokenizer_digest",
)  # fmt: skip
"""Fields in which engines of one form of a model agree. Adapters that come and go may differ."""


class ServedModel:
    """A model of one owner in one form: its index in records (stable while control lives), and its engines.

    Of adapters that come and go, its spec has those that all its engines offer.
    """

    __slots__ = ("_digests", "engines", "forms", "index", "name", "owner", "spec", "spec_bytes")

    def __init__(self, index: int, spec: EngineSpec, owner: str | None, forms: list[ServedModel]) -> None:
        self.index = index
        self.name = spec.model
        self.owner = owner  # the tenant whose pools serve it; None: engines that are everyone's do
        self.forms = forms  # all of the owner's forms of the name, this one too
        self.engines: list[EngineState] = []
        self._digests: dict[int, str] = {}  # of adapters that it offers, or has offered and that are used, by number
        self.take(spec)

    def take(self, spec: EngineSpec) -> None:
        """Take a new form in place of one that has no engines any more."""
        self.spec = replace(spec, retiring=())
        self.spec_bytes = _spec_bytes(spec)
        self._digests.update((adapter.number, adapter.digest) for adapter in spec.adapters)

    def forget_adapters(self, used: Collection[int]) -> None:
        """Forget the adapters that no engine has, and that no program uses."""
        specs = (self.spec, *(engine.spec for engine in self.engines))
        had = {adapter.number for spec in specs for adapter in (*spec.adapters, *spec.retiring)}
        for number in self._digests.keys() - had - set(used):
            del self._digests[number]

    def adapter_digest(self, number: int) -> str:
        """Return the digest of an adapter; "" for none. One that the model never had is known by its number."""
        return self._digests.get(number) or str(number or "")

    def common(self) -> EngineSpec:
        """Return the spec with the adapters that all engines offer, if these come and go."""
        if not self.spec.live_adapters or not self.engines:
            return self.spec
        first, *others = (engine.spec.adapters for engine in self.engines)
        adapters = tuple(adapter for adapter in first if all(adapter in theirs for theirs in others))
        return self.spec if adapters == self.spec.adapters else replace(self.spec, adapters=adapters)

    @property
    def ready(self) -> bool:
        """Whether an engine takes new programs."""
        return any(e.status == "ready" for e in self.engines)

    def ready_for(self, reach: Reach) -> bool:
        """Whether an engine that programs of this reach may use takes new programs."""
        return any(e.status == "ready" for e in self.usable(reach))

    def usable(self, reach: Reach) -> list[EngineState]:
        """Return the engines that programs of this reach may use."""
        return [e for e in self.engines if reach.rank(e.home) is not None]

    def rank(self, reach: Reach) -> int | None:
        """Return how near the model is to programs of this reach; None: they may not use it, and don't see it.

        A model that has no engine at the moment is its owner's still, unless a launch names one pool.
        """
        ranks = [rank for e in self.engines if (rank := reach.rank(e.home)) is not None]
        if ranks:
            return min(ranks)
        return None if self.engines else reach.rank(Home(self.owner))

    def differs(self, spec: EngineSpec) -> str:
        """Return the first field in which `spec` isn't of this form; "" if it is."""
        live = self.spec.live_adapters and spec.live_adapters
        fields = [name for name in AGREE if not (live and name == "adapters")]
        return next((name for name in fields if getattr(self.spec, name) != getattr(spec, name)), "")

    def fits(self, spec: EngineSpec) -> bool:
        """Return whether an engine of this spec is of this form and offers the adapters that the form offers."""
        return not self.differs(spec) and set(self.spec.adapters) <= set(spec.adapters)

    def candidates(self, reach: Reach) -> list[EngineState]:
        """Return the engines that a program of this reach may be placed on: the ready ones.

        If the form has been replaced since the program asked for it, these are the engines that others still use.
        """
        ready = [e for e in self.usable(reach) if e.status == "ready"]
        if not ready and any(form.ready_for(reach) for form in self.forms):
            return [e for e in self.usable(reach) if e.program_ids]
        return ready

    def info(self) -> dict[str, Any]:
        """Return what runtimes are told: the spec, with pools summed over the engines, and who may use the model."""
        spec = asdict(self.spec)
        del spec["retiring"]
        for field in ("num_pages", "num_embeds", "num_slots"):
            spec[field] = sum(getattr(e.spec, field) for e in self.engines) or spec[field]
        ready: dict[Home, bool] = {}
        for engine in self.engines:
            ready[engine.home] = ready.get(engine.home, False) or engine.status == "ready"
        return {
            "index": self.index,
            "name": self.name,
            "spec_json": json.dumps(spec),
            "tokenizer_digest": self.spec.tokenizer_digest,
            "ready": self.ready,
            "engines": len(self.engines),
            "owned": self.owner is not None,
            "owner": self.owner or "",
            "pools": [{"name": h.pool, "shared": h.shared, "ready": is_ready} for h, is_ready in ready.items()],
        }


class Models:
    """All models that engines have brought since control started.

    Models of one name are kept apart by owner: engines of two tenants never have to agree, and never stand in for one
    another. Engines of one owner that don't agree (another checkpoint, another page size) serve the model in several
    forms. Programs get the form that was there first for as long as it has a ready engine, and the other forms stand
    by. So a pool is rolled out in another form without a gap: when the last engine of the old form is cordoned, the
    new form takes over.
    """

    def __init__(self) -> None:
        # by owner and name, in order of the name; of each, the longest served first
        self._forms: dict[tuple[str | None, str], list[ServedModel]] = {}
        self._list: list[ServedModel] = []  # by index

    def __iter__(self) -> Iterator[ServedModel]:
        """Yield ready models by name, then the others. Of one owner's forms, the one that programs get comes first.

        The order is by name because engines come in another order after each restart.
        """
        current = {key: _current(forms) for key, forms in self._forms.items()}
        for key in sorted(current, key=lambda key: (not current[key].ready, key[1], key[0] or "")):
            yield current[key]
            yield from (m for m in self._forms[key] if m is not current[key])

    def seen_by(self, reach: Reach, name: str = "") -> list[ServedModel]:
        """Return the models that programs of this reach may use, the default one first; `name`: only models called so.

        Ready ones come first, of these the tenant's own, then everyone's, then shared ones, each by name.
        """
        ranked = [(m, m.rank(reach)) for m in self if not name or m.name == name]
        seen = [(m, rank) for m, rank in ranked if rank is not None]
        return [m for m, _ in sorted(seen, key=lambda each: (not each[0].ready_for(reach), each[1]))]

    def join(self, spec: EngineSpec, home: Home = EVERYONES_HOME) -> ServedModel:
        """Return the model of a new engine, and make it for the first engine of a form.

        Raises:
            EngineMismatch: the owner serves the model in too many other forms.
            Overloaded: the owner has too many engines, or the specs of all models, or of the owner's, would no longer
                fit a message.
        """
        owned = sum(len(m.engines) for m in self._list if m.owner == home.owner)
        if home.owner is not None and owned >= OWNERS_ENGINES:
            raise Overloaded(what="engines of one tenant", limit=OWNERS_ENGINES)
        key = (home.owner, spec.model)
        forms = self._forms.get(key, [])
        for form in forms:
            if form.engines and form.fits(spec):
                return form
        unused = next((form for form in forms if not form.engines), None)
        if unused is None and len(forms) >= MAX_FORMS:
            field = forms[0].differs(spec) or "adapters"
            theirs, ours = getattr(spec, field), getattr(forms[0].spec, field)
            raise EngineMismatch(model=spec.model, field=field, theirs=theirs, ours=ours)
        self._check_size(spec, home.owner, unused)
        if unused is None:
            forms = self._forms.setdefault(key, forms)
            model = ServedModel(len(self._list), spec, home.owner, forms)
            self._list.append(model)
        else:
            model = unused
            model.take(spec)
            forms.remove(model)
        forms.append(model)
        return model

    def expect(self, spec: EngineSpec, owner: str | None) -> ServedModel:
        """Return a model that a control before this one knew. Its engines may be on their way.

        Raises:
            Overloaded: the specs of all models would no longer fit a message.
        """
        forms = self._forms.get((owner, spec.model), [])
        known = next((form for form in forms if not form.differs(spec)), None)
        if known is not None:
            return known
        if sum(m.spec_bytes for m in self._list) + _spec_bytes(spec) > MODELS_BYTES:
            raise Overloaded(what="bytes of specs in control's list of models", limit=MODELS_BYTES)
        forms = self._forms.setdefault((owner, spec.model), forms)
        model = ServedModel(len(self._list), spec, owner, forms)
        self._list.append(model)
        forms.append(model)
        return model

    def _check_size(self, spec: EngineSpec, owner: str | None, instead_of: ServedModel | None) -> None:
        """Check that a spec has room in the list of models, in the place of another one.

        Raises:
            Overloaded: it hasn't.
        """
        others = [m for m in self._list if m is not instead_of]
        owners = sum(m.spec_bytes for m in others if m.owner == owner) + _spec_bytes(spec)
        if owner is not None and owners > OWNERS_BYTES:
            raise Overloaded(what="bytes of specs of one tenant in control's list of models", limit=OWNERS_BYTES)
        if sum(m.spec_bytes for m in others) + _spec_bytes(spec) > MODELS_BYTES:
            raise Overloaded(what="bytes of specs in control's list of models", limit=MODELS_BYTES)

    def offer(self, form: ServedModel) -> None:
        """Offer the adapters that all engines of a form offer.

        Raises:
            Overloaded: the list of models has no room for more; then only fewer adapters are offered than before.
        """
        spec = form.common()
        if spec is form.spec:
            return
        try:
            self._check_size(spec, form.owner, form)
        except Overloaded:
            kept = tuple(adapter for adapter in spec.adapters if adapter in form.spec.adapters)
            form.take(replace(spec, adapters=kept))
            raise
        form.take(spec)

    def unite(self, model: ServedModel, may_move: Callable[[EngineState], bool]) -> None:
        """Let engines that stand by join an earlier form of a model if they offer by now what that form offers."""
        for at, form in enumerate(model.forms):
            for engine in [e for e in form.engines if form.spec.live_adapters and may_move(e)]:
                to = next((f for f in model.forms[:at] if f.engines and f.fits(engine.spec)), None)
                if to is not None:
                    form.engines.remove(engine)
                    to.engines.append(engine)
                    engine.model_index = to.index

    def stands_by(self, model: ServedModel) -> bool:
        """Return whether programs get another form of the model."""
        return _current(model.forms) is not model

    def named(self, name: str, reach: Reach = ANYWHERE) -> ServedModel | None:
        """Return the model that a program asks for, of those that its reach allows.

        The name "" stands for the default, the first of `seen_by`. While a tenant's own engines of the named model
        are away, others stand in for them only if they serve the same weights.

        Raises:
            UnknownModel: no engine that the program may use ever served a model of that name.
            UnknownPool: the reach names a pool without engines, or one that the tenant may not use.
        """
        seen = self.seen_by(reach, name)
        if not seen:
            if reach.pool and not reach.pool.endswith("/*") and not self.seen_by(reach):
                raise UnknownPool(pool=reach.pool, available=self._pools(reach))
            if name:
                raise self._unknown(name, reach)
            return None
        own = next((m for m in seen if m.rank(reach) == OWN), None) if name else None
        if own is not None and own.spec.model_digest != seen[0].spec.model_digest and not own.ready_for(reach):
            return own
        return seen[0]

    def at(self, index: int, reach: Reach | None = None) -> ServedModel:
        """Return the model with this index, if programs of this reach may use it (None: any program's).

        Raises:
            UnknownModel: there is none.
        """
        if index < len(self._list) and (reach is None or self._list[index].rank(reach) is not None):
            return self._list[index]
        raise self._unknown(f"#{index}", reach or ANYWHERE)

    def _unknown(self, name: str, reach: Reach) -> UnknownModel:
        served = dict.fromkeys(m.name for m in self.seen_by(reach) if m.engines)
        return UnknownModel(model=name, available=list(served)[:MODELS_NAMED])

    def _pools(self, reach: Reach) -> list[str]:
        """Return the pools that the tenant may use, for an error's text."""
        every = Reach(reach.tenant)
        homes = {e.home.path for m in self._list for e in m.engines if e.home.pool and every.rank(e.home) is not None}
        return sorted(homes)[:MODELS_NAMED]


def _current(forms: list[ServedModel]) -> ServedModel:
    """Return the form that programs get: the first ready one, else the first with engines, else the newest."""
    ready = next((m for m in forms if m.ready), None)
    return ready or next((m for m in forms if m.engines), forms[-1])


def _spec_bytes(spec: EngineSpec) -> int:
    """Return about how many bytes a spec takes in a message."""
    return len(json.dumps(asdict(spec))) + len(spec.model) + 256
