"""How a pair of functions, value and gradient, becomes differentiable: in eager mode, torch.func and torch.compile.

A pair is registered with torch.library, which torch.compile sees as one opaque operation. Eager mode goes around
the dispatcher, whose price (0.1 ms) is felt at the sizes of a training step, through torch.autograd.Function.
Both can be differentiated once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Pair:
    """A function of (queries, supports, ...), differentiable in these two, and its gradient.

    value: inputs -> outputs. The first `results` outputs are differentiable results, the others are for the gradient.
    gradient: (gradients of the results, outputs, inputs, need_queries, need_supports) -> (dq, ds), each of the
        dtype of its vectors, and empty where it is not needed.
    arguments, outputs: their declarations, in the language of torch.library.
    """

    name: str
    value: Callable[..., Outputs]
    gradient: Callable[..., Outputs]
    fake_value: Callable[..., Outputs]
    arguments: str
    outputs: str
    results: int = 1


def transformed() -> bool:
    """Return whether a transform of torch.func is at work: tensors are then wrapped, and have no values to look at."""
    return torch._C._are_functorch_transforms_active()


def _fake_gradient(*inputs: Any, first: int) -> Outputs:
    """`first`: where the queries are among the inputs."""
    queries, supports, (need_queries, need_supports) = inputs[first], inputs[first + 1], inputs[-2:]
    return (
        torch.empty_like(queries) if need_queries else queries.new_empty(0),
        torch.empty_like(supports) if need_supports else supports.new_empty(0),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    """Keep tensors where autograd wants them, and remember where they belong."""
    ctx.tensors = [isinstance(x, Tensor) for x in inputs]
    ctx.others = [x for x in inputs if not isinstance(x, Tensor)]
    ctx.save_for_backward(*output, *(x for x in inputs if isinstance(x, Tensor)))
    ctx.set_materialize_grads(False)


def _saved(ctx: Any) -> list[Any]:
    """Return outputs and inputs."""
    saved, others = list(ctx.saved_tensors), iter(ctx.others)
    count = len(saved) - sum(ctx.tensors)
    tensors = iter(saved[count:])
    return saved[:count] + [next(tensors if is_tensor else others) for is_tensor in ctx.tensors]


def _grads(ctx: Any, grads: tuple[Any, ...], results: int, run: Callable[..., Outputs]) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad[:2]
    given = grads[:results]
    missing = [None] * (len(ctx.tensors) - 2)
    if all(grad is None for grad in given):
        return None, None, *missing
    saved = _saved(ctx)
    given = tuple(torch.zeros_like(out) if grad is None else grad for grad, out in zip(given, saved, strict=False))
    found = run(*given, *saved, *needs)
    return *(grad if need else None for grad, need in zip(found, needs, strict=True)), *missing


def _no_double_backward(ctx: Any, *_: Any) -> None:
    raise RuntimeError("nncsl.kernels can be differentiated once; for second derivatives use backend='reference'")


def _one_by_one(function: Any, info: Any, in_dims: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Any, Any]:
    """vmap as a loop: no back end has a batch dimension."""
    rows = []
    for i in range(info.batch_size):
        picked = (x if dim is None else x.select(dim, i) for x, dim in zip(inputs, in_dims, strict=True))
        rows.append(function.apply(*picked))
    outputs = tuple(torch.stack(column) for column in zip(*rows, strict=True))
    return outputs, (0,) * len(outputs)


def applied(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return `function.apply`, quicker in eager mode: there the context is set up inside of `forward`.

    For a function with `setup_context`, which torch.func needs, torch looks up the signature of `forward` on every
    call. That takes 0.1 ms, as long as all other Python of a small problem.
    """

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = function.forward(*inputs)
            function.setup_context(ctx, inputs, output)
            return output

        backward = staticmethod(function.backward)

    def apply(*inputs: Any) -> Any:
        general = transformed() or torch.compiler.is_compiling()
        return (function if general else Eager).apply(*inputs)

    return apply


def _function(pair: Pair) -> type[torch.autograd.Function]:
    """Return the value as an autograd function; its gradient is one too."""

    class Gradient(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Any) -> Outputs:
            return pair.gradient(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> None:
            _no_double_backward(ctx)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
            return _one_by_one(Gradient, info, in_dims, inputs)

    class Value(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Any) -> Outputs:
            return pair.value(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
            ctx.mark_non_differentiable(*output[pair.results :])
            _save(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            # With gradients enabled a second derivative might be asked for: the function refuses that one.
            watched = torch.is_grad_enabled() or transformed()
            return _grads(ctx, grads, pair.results, Gradient.apply if watched else pair.gradient)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
            return _one_by_one(Value, info, in_dims, inputs)

    return Value


def _register(pair: Pair, count: int) -> None:
    """Define the operators `name` and `name_backward` for the life of the process. count: of the outputs."""
    grads = ", ".join(f"Tensor grad_{i}" for i in range(pair.results))
    saved = ", ".join(f"Tensor saved_{i}" for i in range(count))
    schemas = {
        pair.name: (pair.value, pair.fake_value, f"({pair.arguments}) -> ({pair.outputs})"),
        f"{pair.name}_backward": (
            pair.gradient,
            lambda *inputs: _fake_gradient(*inputs, first=pair.results + count),
            f"({grads}, {saved}, {pair.arguments}, bool need_queries, bool need_supports) -> (Tensor dq, Tensor ds)",
        ),
    }
    for name, (real, fake, schema) in schemas.items():
        torch.library.define(f"nncsl::{name}", schema)
        torch.library.impl(f"nncsl::{name}", "CompositeExplicitAutograd", real)
        torch.library.register_fake(f"nncsl::{name}", fake)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return _grads(ctx, grads, pair.results, getattr(torch.ops.nncsl, f"{pair.name}_backward").default)

    torch.library.register_autograd(f"nncsl::{pair.name}", backward, setup_context=_save)
    torch.library.register_autograd(f"nncsl::{pair.name}_backward", _no_double_backward)


def differentiable(pair: Pair) -> Callable[..., Outputs]:
    """Return `pair.value`, differentiable in its first two arguments."""
    # In a checkout this package is imported under two names, kernels and nncsl.kernels: the first one registers.
    if not hasattr(torch.ops.nncsl, pair.name):
        _register(pair, len(pair.outputs.split(",")))
    value = applied(_function(pair))

    def run(*inputs: Any) -> Outputs:
        if torch.compiler.is_compiling():
            return getattr(torch.ops.nncsl, pair.name).default(*inputs)
        needed = torch.is_grad_enabled() and (inputs[0].requires_grad or inputs[1].requires_grad)
        return value(*inputs) if needed or transformed() else pair.value(*inputs)

    return run
