"""The tensors of this process: which there are, what came and went, what a model takes. See also `notebook`."""
