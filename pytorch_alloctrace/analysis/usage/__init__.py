"""What memory consists of: by site, phase and age, at a position, over a range, and between two runs."""
