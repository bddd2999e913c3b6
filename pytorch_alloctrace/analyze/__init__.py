"""Commands that read traces, one class a command, listed in `parser.py`. They parse, call and print."""
