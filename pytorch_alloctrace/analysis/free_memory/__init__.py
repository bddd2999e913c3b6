"""Memory that torch reserves and the program does not use: fragmentation, pinners, failed allocations."""
