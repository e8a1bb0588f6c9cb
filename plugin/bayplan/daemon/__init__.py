"""The daemon: configuration, logs, the event loop and the wiring of everything below."""
