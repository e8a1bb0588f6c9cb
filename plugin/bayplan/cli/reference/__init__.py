"""Man pages and shell completions, made from the parsers of the commands: ``python -m
bayplan.cli.reference``."""
