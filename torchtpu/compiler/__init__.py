"""torch.compile for device tpu."""
