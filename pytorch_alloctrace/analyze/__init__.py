"""Commands that read traces, one class per command. `parser.py` lists them."""
