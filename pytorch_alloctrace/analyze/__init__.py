"""The command line: one class a verb, listed in `verbs`. It parses, calls and prints; `analysis` computes."""
