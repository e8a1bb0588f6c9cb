"""The durable record of decisions: one SQLite database in the state directory.

A cache plus a history: losing it is an event, never an outage, because the runtime knows what runs. Only
this package knows SQL or how an entry is written down, there or into the container itself.
"""

from bayplan.state.directory import check_directory, unusable
from bayplan.state.record import Step, annotations_of, entries_in
from bayplan.state.store import HistoryItem, RefusedItem, Store

__all__ = [
    "HistoryItem",
    "RefusedItem",
    "Step",
    "Store",
    "annotations_of",
    "check_directory",
    "entries_in",
    "unusable",
]
