"""What the TPU compiler makes of a program: its optimized HLO, read and timed."""
