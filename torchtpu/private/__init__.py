"""Private interfaces of torch, jax and jaxlib, in one place; imports nothing by itself."""
