"""JAX's primitive for all collectives, inside and outside `jax.jit`.

Inside, a call is compiled to one custom call of XLA, which is the engine's own code and needs no
Python. If XLA has no such target (arrays on a GPU), the call is a callback into Python.

XLA may run independent calls in any order, and each blocks a thread until the other ranks make
the same call: two ranks with different orders could wait for each other forever. So all calls
have a JAX effect that keeps them in the order of the program: tokens chain the calls within a
compiled function, through its loops and branches, and from one function to the next.

If a call fails, its token fails too, and JAX raises the error again at the next call. A job begins
without a token, and ends after its last call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
from jax._src import dispatch, effects
from jax._src.core import abstract_token
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from hvdtune.core import job, world
from hvdtune.core.exceptions import HorovodInternalError, is_mistake
from hvdtune.core.operations import xla_collective_call
from hvdtune.jax.adapter import on_host
from hvdtune.jax.call import Call

_TARGET = "hvdtune_collective"
native = True  # tests switch it off
_registered = False


class _CollectiveEffect(effects.Effect):
    def __str__(self) -> str:
        return "hvdtune"


_effect = _CollectiveEffect()
for _allowed in (
    *(effects.lowerable_effects, effects.ordered_effects, effects.control_flow_allowed_effects),
    *(effects.custom_derivatives_allowed_effects, effects.remat_allowed_effects),
):
    _allowed.add_type(_CollectiveEffect)

collective_p = Primitive("hvdtune_collective")
collective_p.multiple_results = True


def run(call: Call, arrays: Sequence[Any]) -> list[Any]:
    """The results of a call, as JAX arrays; traced if the arrays or the context are."""
    results: list[Any] = collective_p.bind(*arrays, call=call)
    return results


@collective_p.def_impl
def _run_now(*arrays: Any, call: Call) -> list[Any]:
    # Not `jax.numpy.asarray`, which compiles a program for each new shape, and copies twice.
    results: list[Any] = jax.device_put(call.run([on_host(one) for one in arrays]))
    return results


def _abstract(*avals: Any, call: Call) -> Any:
    shapes = call.result_shapes([aval.shape for aval in avals])
    results = [
        jax.core.ShapedArray(shape, aval.dtype) for shape, aval in zip(shapes, avals, strict=True)
    ]
    return results, {_effect}


collective_p.def_effectful_abstract_eval(_abstract)


def _lower_to_custom_call(ctx: Any, *operands: Any, call: Call) -> Any:
    if not native:
        return _lower_to_callback(ctx, *operands, call=call)
    _register()
    with_token = ctx.replace(
        avals_in=[abstract_token, *ctx.avals_in], avals_out=[abstract_token, *ctx.avals_out]
    )
    lower = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True)
    token = ctx.tokens_in.get(_effect)
    token, *results = lower(with_token, token, *operands, **call.attributes())
    _give_token(ctx, token)
    return results


def _lower_to_callback(ctx: Any, *operands: Any, call: Call) -> Any:
    def call_back(*arrays: Any) -> tuple[Any, ...]:
        call.check_place()
        try:
            return tuple(call.run([on_host(one) for one in arrays]))
        except HorovodInternalError as error:
            # As the custom call does: elastic training recognises the end of a job by the text.
            if is_mistake(error) or not world.is_initialized():
                raise
            raise HorovodInternalError(f"hvdtune: {error}") from None

    results, token, _ = mlir.emit_python_callback(
        ctx,
        call_back,
        ctx.tokens_in.get(_effect),
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
    )
    _give_token(ctx, token)
    return results


def _give_token(ctx: Any, token: Any) -> None:
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({_effect: token})))


def _register() -> None:
    global _registered
    if not _registered:
        jax.ffi.register_ffi_target(_TARGET, xla_collective_call(), platform="cpu")
        _registered = True


def _take_token() -> Any:
    return dispatch.runtime_tokens.current_tokens.pop(_effect, None)


def _finish_calls() -> None:
    """Wait for the calls that this thread has dispatched: the other ranks also wait for them.

    If another rank ends the job instead, the call ends with an error, which is raised when its
    results are read.
    """
    token = _take_token()
    if token is not None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            token.block_until_ready()


job.add_lifecycle_hook(_take_token, _finish_calls)

mlir.register_lowering(collective_p, _lower_to_custom_call, platform="cpu")
mlir.register_lowering(collective_p, _lower_to_callback)


def _refuse_vmap(arrays: Sequence[Any], axes: Sequence[Any], *, call: Call) -> Any:
    raise NotImplementedError(
        f"{call.operation} cannot be mapped with jax.vmap; call it on the whole array, outside of "
        "the function that is mapped."
    )


batching.primitive_batchers[collective_p] = _refuse_vmap
