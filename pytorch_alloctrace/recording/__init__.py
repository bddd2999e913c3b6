"""Recording: `enable`, steps, `run`, and child processes. Imports nothing that reads a trace."""
