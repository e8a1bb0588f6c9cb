"""Machines and traces from files, and pods played on an engine: for `bayplan simulate` and what-if."""
