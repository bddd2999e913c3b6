"""Callbacks for trainers that have them: `callbacks.lightning`, `callbacks.transformers`. Each imports its trainer."""
