"""The report: one HTML page that shows a trace, works from a file, and needs no network (see docs/report.md)."""
