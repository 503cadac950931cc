"""Which record comes in which slot, what part of it is shown, who serves it: pure functions, no
coordinator.
"""

from feeder.order.assignment import assign, next_in_line
from feeder.order.chunks import chunks, slots_by_worker
from feeder.order.lanes import Order, default_lanes
from feeder.order.ledger import EpochCounts, Ledger, SlotStatus
from feeder.order.position import Position
from feeder.order.windows import eval_windows, smallest_window, train_windows, whole_windows

__all__ = [
    "EpochCounts",
    "Ledger",
    "Order",
    "Position",
    "SlotStatus",
    "assign",
    "chunks",
    "default_lanes",
    "eval_windows",
    "next_in_line",
    "slots_by_worker",
    "smallest_window",
    "train_windows",
    "whole_windows",
]
