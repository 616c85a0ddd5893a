"""Constants of the cost model that were fitted to measurements, one dated file per generation."""
