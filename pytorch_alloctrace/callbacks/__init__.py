"""Callbacks for trainers: `callbacks.lightning` and `callbacks.transformers`. Each module imports its trainer."""
