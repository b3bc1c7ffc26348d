"""Handwritten digits with Flax and optax, on any number of ranks.

    hvdtune run -np 4 python examples/jax/flax_mnist.py

The images are the 8 x 8 digits that come with scikit-learn. ``--batch-size`` counts the images of
all ranks together, and every rank takes its share of each batch: the training is the same for any
number of ranks, up to rounding.
"""

import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import hvdtune.jax as hvd


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.gelu(nn.Conv(16, (3, 3))(x))
        x = nn.avg_pool(x, (2, 2), (2, 2))
        x = nn.gelu(nn.Dense(64)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


def main():
    parser = argparse.ArgumentParser(description="Train a digit classifier on several ranks.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=48, help="images of all ranks together")
    parser.add_argument("--lr", type=float, default=0.003)
    args = parser.parse_args()

    # 1. Initialise.
    hvd.init()
    if args.batch_size <= 0 or args.batch_size % hvd.size() != 0:
        parser.error(f"--batch-size cannot be divided evenly among {hvd.size()} ranks")
    share = args.batch_size // hvd.size()

    digits = load_digits()
    images = digits.images[..., None].astype(np.float32) / 16
    x_train, x_test, y_train, y_test = train_test_split(
        images, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )

    # 2. The optimizer averages gradients over the ranks, in one call.
    model = Net()
    optimizer = hvd.DistributedOptimizer(optax.adam(args.lr))
    params = model.init(jax.random.key(hvd.rank()), x_train[:1])
    state = optimizer.init(params)

    # 3. Start from the same state everywhere.
    params, state = hvd.broadcast_parameters((params, state), root_rank=0)

    def loss_of(params, x, y):
        logits = model.apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @jax.jit
    def step(params, state, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, hvd.allreduce(loss)

    for epoch in range(args.epochs):
        # 4. Give every rank its part of each batch; the shuffle is the same on all.
        order = np.random.default_rng(epoch).permutation(len(x_train))
        for start in range(0, len(order) - args.batch_size + 1, args.batch_size):
            mine = order[start + hvd.rank() * share :][:share]
            params, state, loss = step(params, state, x_train[mine], y_train[mine])
        # Every rank tests a part; the counts are added up.
        part = slice(hvd.rank(), None, hvd.size())
        right = (model.apply(params, x_test[part]).argmax(1) == y_test[part]).sum()
        accuracy = int(hvd.allreduce(right, op=hvd.Sum)) / len(y_test)
        # 5. Report on one rank only.
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {float(loss):.4f}, test accuracy {accuracy:.4f}")

    total = sum(float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(params))
    if len(set(hvd.allgather_object(total))) > 1:
        raise SystemExit("the ranks ended with different weights")


if __name__ == "__main__":
    main()
