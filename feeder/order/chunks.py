"""How one consumer's part of a step is cut into requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from feeder.errors import ConfigError

__all__ = ["MAX_SLOTS", "chunks", "slots_by_worker"]

MAX_SLOTS = 64
"""Most slots of one request (feeder.proto)."""


def slots_by_worker(slots: Iterable[int], per_lane: int, owners: Mapping[int, str]) -> dict[str, list[int]]:
    """The slots of a step that each worker makes, in the order of `slots`; `owners` is what `assign`
    gives.
    """
    shares: dict[str, list[int]] = {}
    for slot in slots:
        shares.setdefault(owners[slot // per_lane], []).append(slot)
    return shares


def chunks(
    slots_by_worker: Mapping[str, Sequence[int]], max_slots: Mapping[str, int]
) -> list[tuple[str, tuple[int, ...]]]:
    """Each worker's slots in as few pieces of at most its max_slots as there can be, all of about one size.

    Returns:
        (worker, slots ascending) of each request, by their first slot.

    Raises:
        ConfigError: one of max_slots is not in [1, 64].
    """
    pieces: list[tuple[str, tuple[int, ...]]] = []
    for worker, share in slots_by_worker.items():
        most, slots = max_slots[worker], sorted(share)
        if not 1 <= most <= MAX_SLOTS:
            raise ConfigError(f"a chunk holds between 1 and {MAX_SLOTS} slots, got max_slots {most}")
        count = -(-len(slots) // most)
        for piece in range(count):
            first, last = (number * len(slots) // count for number in (piece, piece + 1))
            pieces.append((worker, tuple(slots[first:last])))
    return sorted(pieces, key=lambda piece: piece[1])
