"""What the daemon shows and answers over its admin socket: views of a snapshot, questions, metrics."""
