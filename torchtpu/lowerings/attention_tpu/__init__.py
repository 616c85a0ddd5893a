"""Attention that JAX lowers to Pallas kernels for platform tpu, and to ops for every other.

`Forked` is a function of both forms, `taken` says what the kernels take, README.md what StableHLO
shows of them.
"""

from torchtpu.lowerings.attention_tpu.choice import backward_kernels, forward_kernels, taken
from torchtpu.lowerings.attention_tpu.forked import Forked
from torchtpu.lowerings.attention_tpu.sizes import Sizes

__all__ = ["Forked", "Sizes", "backward_kernels", "forward_kernels", "taken"]
