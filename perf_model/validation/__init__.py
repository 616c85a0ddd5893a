"""Published measurements with their sources, and what the model predicts for them."""
