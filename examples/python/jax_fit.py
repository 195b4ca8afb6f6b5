"""A linear model fitted by JAX on all ranks: each has its own data, and the gradients are averaged.

    make lib; pip install jax
    PYTHONPATH=python weft run -n 4 -- python3 examples/python/jax_fit.py
"""
import jax
import jax.numpy as jnp

import weft
import weft.functional as wf

TRUE = jnp.array([2.0, -3.0, 0.5])


@jax.jit
def loss_and_grads(params, x, y):
    def loss(p):
        return jnp.mean((x @ p["w"] + p["b"] - y) ** 2)
    return jax.value_and_grad(loss)(params)


with weft.join() as c:
    key = jax.random.PRNGKey(c.rank)  # other data on every rank
    x = jax.random.normal(key, (256, 3))
    y = x @ TRUE + 1.5
    params = wf.broadcast(c, {"w": jnp.zeros(3), "b": jnp.zeros(())})  # all begin with rank 0's
    for step in range(100):
        loss, grads = loss_and_grads(params, x, y)
        loss, grads = wf.all_reduce(c, (loss, grads), "avg")
        params = jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, grads)
        if c.rank == 0 and step % 25 == 0:
            print(f"step {step}: loss {loss:.4f}")
    if c.rank == 0:
        print("w", params["w"], "b", params["b"])
