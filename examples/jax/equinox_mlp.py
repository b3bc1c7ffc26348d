"""A regression with Equinox; `hvd.value_and_grad` returns reduced gradients.

    hvdtune run -np 2 python examples/jax/equinox_mlp.py

The data are generated; every rank takes every size-th sample.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import hvdtune.jax as hvd


def main():
    parser = argparse.ArgumentParser(description="Fit a curve on several ranks.")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    hvd.init()
    x = np.linspace(-1, 1, 240, dtype=np.float32)[hvd.rank() :: hvd.size(), None]
    y = np.sin(4 * x)

    # Separate the trained parameters from the rest, such as activation functions.
    model = eqx.nn.MLP(1, 1, 32, 2, jnp.tanh, key=jax.random.key(hvd.rank()))
    params, rest = eqx.partition(model, eqx.is_inexact_array)
    params = hvd.broadcast_parameters(params, root_rank=0)
    optimizer = optax.adam(0.01)
    state = optimizer.init(params)

    def loss_of(params):
        return ((jax.vmap(eqx.combine(params, rest))(x) - y) ** 2).mean()

    @jax.jit
    def step(params, state):
        loss, gradients = hvd.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, hvd.allreduce(loss)

    for index in range(1, args.steps + 1):
        params, state, loss = step(params, state)
        if hvd.rank() == 0 and index % 100 == 0:
            print(f"step {index}: loss {float(loss):.5f}")


if __name__ == "__main__":
    main()
