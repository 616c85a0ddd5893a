"""Programs for other machines: export to StableHLO, and ahead-of-time compilation for TPUs."""
