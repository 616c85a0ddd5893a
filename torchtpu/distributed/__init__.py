"""torch.distributed on device tpu: process-group backend "tpu_dist" (alias "tpu")."""
