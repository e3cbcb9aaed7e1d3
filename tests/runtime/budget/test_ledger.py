"""The books of the process's memory, without a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tartlet_common.errors.registry import JournalFull, MemoryBudgetExceeded, Overloaded
from tartlet_common.process.memory import MemoryBound, memory_bound
from tartlet_runtime.budget.growth import Growth
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.journal.file_store import FileStore
from tartlet_runtime.journal.journals import Journals
from tartlet_runtime.journal.space import Space

MIB = 1 << 20
V1_MOUNT = "36 32 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V2_MOUNT = "36 32 0:30 {base} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def machine(root: Path, *, groups: str, mounts: str, files: dict[str, str]) -> Path:
    """Write the files that tell of a process's groups and a machine of 8 GiB."""
    for name, text in {
        "proc/meminfo": "MemTotal:       8388608 kB\n",
        "proc/self/cgroup": groups,
        "proc/self/mountinfo": mounts,
        **files,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "found"),
    [
        ("0::/\n", V2_MOUNT.format(base="/"), {"memory.max": "max\n"}, MemoryBound(8 << 30, "machine")),
        ("0::/a/b\n", V2_MOUNT.format(base="/"), {"a/memory.max": "1048576", "a/b/memory.max": "max"}, 1 << 20),
        ("0::/a/b\n", V2_MOUNT.format(base="/a"), {"b/memory.max": "2097152", "memory.max": "max"}, 2 << 20),
        ("0::/a\n", V2_MOUNT.format(base="/a"), {"memory.max": "3145728"}, 3 << 20),
        ("0::/../other\n", V2_MOUNT.format(base="/"), {"memory.max": "4194304"}, 4 << 20),
        ("4:memory:/a/b\n", V1_MOUNT, {"memory/a/memory.limit_in_bytes": "1048576"}, 1 << 20),
        (
            "4:cpu,memory:/a\n0::/\n",
            V1_MOUNT,
            {"memory/a/memory.limit_in_bytes": "9223372036854771712"},
            MemoryBound(8 << 30, "machine"),
        ),
    ],
)
def test_the_bound_is_the_least_limit_of_the_groups_above_a_process(
    tmp_path: Path, groups: str, mounts: str, files: dict[str, str], found: MemoryBound | int
) -> None:
    in_mount = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    root = machine(tmp_path, groups=groups, mounts=mounts, files=in_mount)
    assert memory_bound(0, root) == (found if isinstance(found, MemoryBound) else MemoryBound(found, "cgroup"))
    assert memory_bound(5, root) == MemoryBound(5, "setting")


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    ledger = Ledger(100)
    ledger.take(Use.PROGRAMS, 70)
    with pytest.raises(MemoryBudgetExceeded) as refused:
        ledger.take(Use.MODULES, 31)
    assert refused.value.fields == {"use": "modules", "asked": 31, "free": 30, "limit": 100}
    assert ledger.take_share(Use.COMPILERS, least_bytes=10, most_bytes=1000) == 15
    assert ledger.take_share(Use.COMPILERS, least_bytes=10, most_bytes=1000) == 10
    with pytest.raises(MemoryBudgetExceeded):
        ledger.take_share(Use.COMPILERS, least_bytes=10, most_bytes=1000)
    assert ledger.free_bytes == 5


class _Written:
    """A meter that a test moves."""

    def __init__(self) -> None:
        self.bytes = 0

    def read(self) -> int:
        return self.bytes


def test_guests_that_compute_at_once_never_take_the_same_bytes() -> None:
    ledger, written = Ledger(100 * MIB), _Written()
    ledger.take(Use.PROGRAMS, 16 * MIB)
    first, second = (Growth(ledger, written, 8 * MIB, 90 * MIB, 4 * MIB) for _ in range(2))
    assert (first.open(), second.open()) == (90 * MIB, 10 * MIB)
    assert (first.refused, second.refused) == (False, True)
    written.bytes += 50 * MIB  # the first's
    second.settle(4 * MIB)
    first.settle()
    assert ledger.free_bytes == 100 * MIB - 16 * MIB - (54 - 8) * MIB
    assert second.open() == 8 * MIB + ledger.bound_bytes - 16 * MIB - 46 * MIB
    second.close()
    first.close()
    assert ledger.taken[Use.PROGRAMS] == 16 * MIB


def test_the_memory_that_a_fresh_guest_starts_with_is_not_its_growth() -> None:
    ledger, written = Ledger(1000 * MIB), _Written()
    fresh, warm = (Growth(ledger, written, 0, 256 * MIB, 0, mapped_bytes=24 * MIB) for _ in range(2))
    for guest, bytes_ in ((fresh, 26 * MIB), (warm, 3 * MIB), (fresh, 5 * MIB)):
        guest.open()
        written.bytes += bytes_
        guest.settle()
    assert ledger.taken[Use.PROGRAMS] == (26 - 24 + 3 + 5) * MIB


def test_journals_share_their_space_and_a_small_one_goes_on(tmp_path: Path) -> None:
    space = Space(10_000)
    store = FileStore(tmp_path, space)
    journals = Journals(store, space, now=lambda: 0.0)
    kept = journals.open("kept", b"h" * 3000, 5000)
    journals.close(kept, keep=True)
    large = journals.open("large", b"h" * 100, 10_000)
    small = journals.open("small", b"h" * 100, 10_000)
    large.append(0, b"x" * 8500)  # the kept journal makes room
    assert not store.path("kept").exists()
    small.append(0, b"x" * 1000)
    with pytest.raises(JournalFull):
        large.append(0, b"x" * 1000)
    small.append(0, b"x" * 2000)  # below its equal share
    with pytest.raises(Overloaded):
        journals.open("more", b"h" * 100, 10_000)
    journals.close(large, keep=False)
    journals.close(small, keep=False)
    assert space.used_bytes == 0
    store.close_all()
