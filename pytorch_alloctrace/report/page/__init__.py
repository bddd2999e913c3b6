"""The HTML report: one self-contained page that needs no network (see docs/report.md)."""
