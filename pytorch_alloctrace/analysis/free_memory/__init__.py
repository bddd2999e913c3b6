"""Memory that torch holds and the program does not use: fragmentation, pinners, failed allocations."""
