"""What tests need and users may run: checks against recorded answers. Nothing in the daemon imports this."""
