"""Which Python objects hold which tensors, in the process itself."""
