"""Man pages and shell completions, made from the parsers of the commands, and the pictures of the documents:
``python -m bayplan.cli.reference``."""
