"""Many devices: topologies, groups on the torus, and what collectives cost in closed form."""
