"""Plays the embedder of one guest."""

from __future__ import annotations

from tartlet_runtime.wasm import (
    Delivery,
    Fiber,
    FiberOutcome,
    GuestClock,
    GuestHooks,
    GuestLimits,
    GuestRandom,
    LinkedModule,
    Phase,
    QuietHooks,
    WasmHost,
)

START_NS = 10**18
SECOND_NS = 10**9


def submitted(guest: Fiber) -> list[bytes]:
    """What a guest with `QuietHooks` has submitted."""
    assert isinstance(guest.hooks, QuietHooks)
    return guest.hooks.submitted


def printed(guest: Fiber, stream: int = 1) -> bytes:
    """What a guest with `QuietHooks` has written."""
    assert isinstance(guest.hooks, QuietHooks)
    return b"".join(data for number, data in guest.hooks.output if number == stream)


def outcome_of(guest: Fiber) -> FiberOutcome:
    """How a guest ended."""
    assert guest.outcome is not None, guest.phase
    return guest.outcome


class Driver:
    """Runs one guest and answers its waits from a list."""

    def __init__(self, host: WasmHost) -> None:
        self.host = host
        self.slept_us: list[int] = []

    def start(
        self,
        program: LinkedModule,
        source: str = "",
        *args: str,
        limits: GuestLimits | None = None,
        hooks: GuestHooks | None = None,
        seed: bytes = b"seed",
    ) -> Fiber:
        guest = self.host.create(
            program, hooks=hooks, limits=limits, clock=GuestClock(START_NS), random=GuestRandom(seed)
        )
        guest.start(source, "user.py", args)
        return guest

    def settle(self, *guests: Fiber) -> None:
        """Step until none is READY: on a busy machine a slice may end at any point."""
        while any(guest.phase is Phase.READY for guest in guests):
            self.host.step_many(guests)

    def run(self, guest: Fiber, *deliveries: bytes, max_steps: int = 10_000) -> Fiber:
        """Until the guest ends or wants more deliveries than there are; each comes a second after the last."""
        left = list(deliveries)
        for _ in range(max_steps):
            phase = guest.step()
            if phase is Phase.ENDED:
                return guest
            if phase is Phase.SLEEPING:
                self.slept_us.append(guest.sleep_us)
                guest.wake()
            elif phase is Phase.WAITING:
                if not left:
                    return guest
                guest.deliver(Delivery(left.pop(0), guest.clock.peek_ns() + SECOND_NS))
        raise AssertionError(f"not ended after {max_steps} steps")
