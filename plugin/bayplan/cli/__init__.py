"""The `bayplan` command: asks the daemon over its admin socket and shows the answer. It decides nothing."""
