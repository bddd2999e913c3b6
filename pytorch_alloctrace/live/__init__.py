"""The tensors of this process: a list, the changes between two lines, and the memory of a model."""
