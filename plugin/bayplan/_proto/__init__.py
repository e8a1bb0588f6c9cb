"""Code generated from proto/ by proto/generate.sh. Only the __init__ files are written by hand."""
