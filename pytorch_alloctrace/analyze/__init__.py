"""The command line: one class a verb, listed in `verbs`."""
