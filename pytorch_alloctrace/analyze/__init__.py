"""The command line of the analyses: ``python -m pytorch_alloctrace.analyze TRACE``."""
