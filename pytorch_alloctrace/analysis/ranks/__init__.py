"""Many traces at once, one of each rank: each is reduced to a summary of at most 1 MB, and these are compared."""
