"""A simulated device: time in integer picoseconds and an account of HBM. No numerics, no torch, no
jax.
"""
