"""The real TPU compiler as an oracle: a step's programs compiled ahead of time, without a TPU."""
