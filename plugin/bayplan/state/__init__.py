"""The durable record of decisions: one SQLite database in the state directory.

A cache plus a history: losing it is an event, never an outage, because the runtime knows what runs. Only
this package knows SQL or how an entry is written down.
"""

from bayplan.state.step import Step
from bayplan.state.store import HistoryItem, Store

__all__ = ["HistoryItem", "Step", "Store"]
