"""Read-only faces of the daemon: views of a snapshot, and the admin socket that serves them."""
