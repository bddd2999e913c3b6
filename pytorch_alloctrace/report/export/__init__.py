"""A trace in the formats of other tools: see `FORMATS`, and docs/export.md."""
