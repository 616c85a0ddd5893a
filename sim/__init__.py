"""The simulated TPU: clock, memory and torus; time only, no numerics."""
