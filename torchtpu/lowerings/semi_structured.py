"""Which elements of a matrix stay so that it becomes 2:4 sparse along rows and columns."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from torchtpu.lowerings.registry import Array, lowering


@lowering("torchtpu::greedy_2_of_4")
def greedy_2_of_4(self: Array) -> Array:
    """[M, N] -> bool[M, N]: of each 4 x 4 tile, the largest first, two a row and two a column."""
    rows, columns = self.shape
    x = self.astype(jnp.promote_types(self.dtype, jnp.float32)).reshape(rows // 4, 4, -1, 4)
    tiles = jnp.swapaxes(x, 1, 2).reshape(-1, 16)
    order = jnp.argsort(jnp.where(jnp.isnan(tiles), -jnp.inf, -tiles), axis=1, stable=True)

    def step(kept: Array, place: Array) -> tuple[Array, None]:
        free_rows = jnp.sum(kept, 2, keepdims=True) < 2
        free_columns = jnp.sum(kept, 1, keepdims=True) < 2
        here = (jnp.arange(16) == place[:, None]).reshape(-1, 4, 4)
        return kept | here & free_rows & free_columns, None

    kept, _ = lax.scan(step, jnp.zeros((len(tiles), 4, 4), bool), order.T)
    apart = kept.reshape(rows // 4, columns // 4, 4, 4)
    return jnp.swapaxes(apart, 1, 2).reshape(rows, columns)
