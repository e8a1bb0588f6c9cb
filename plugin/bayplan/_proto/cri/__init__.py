"""Generated; see proto/."""
