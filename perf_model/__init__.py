"""What a program costs on a TPU: chip facts, cost rules, fusion, roofline and reports. Needs no
TPU, torch or jax.
"""
