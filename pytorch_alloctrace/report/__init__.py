"""Output of the analyses as text and JSON."""
