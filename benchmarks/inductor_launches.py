"""What torch.compile would start on a GPU that is not there: the launches in the code that Inductor writes for one.

A function is traced with its gradient on the CPU, and the two graphs are then handed to Inductor as graphs of an A100
whose properties are told to it. The code is written, and read here; it is never compiled, and it never runs.
"""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

DEVICE = torch.device("cuda", 0)
A100 = {
    "major": 8, "minor": 0, "multi_processor_count": 108, "warp_size": 32, "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
}  # fmt: skip


class Launches(NamedTuple):
    """Kernels that Inductor wrote, and calls of libraries and aten."""

    triton: int
    extern: int


class _Written(Exception):
    """The code is there."""


def count(function: Callable[..., Any], inputs: Sequence[Tensor]) -> dict[str, Launches]:
    """Return the launches of the forward pass and of the backward pass of differentiable results."""
    from torch._functorch.aot_autograd import aot_function
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes

    graphs: list[tuple[torch.fx.GraphModule, Sequence[Any]]] = []

    def keep(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        graphs.append((copy.deepcopy(gm), example_inputs))
        return gm

    def partition(graph: torch.fx.GraphModule, examples: Any, **options: Any) -> Any:
        return min_cut_rematerialization_partition(joint_graph_passes(graph), examples, **options)

    traced = aot_function(
        function, fw_compiler=keep, bw_compiler=keep, partition_fn=partition, decompositions=select_decomp_table()
    )
    results = traced(*inputs)
    results = [x for x in (results if isinstance(results, list | tuple) else [results]) if x.requires_grad]
    torch.autograd.backward(results, [torch.ones_like(x) for x in results])
    return {name: _launches(_code(*graph)) for name, graph in zip(("forward", "backward"), graphs, strict=True)}


def _launches(code: str) -> Launches:
    """Count the calls in the code that runs a graph."""
    body = code[code.index("def call(") :].split("\nrunner =")[0]
    extern = re.findall(r"extern_kernels\.\w+\(|torch\.ops\.\w+\.[\w.]+\(|\baten\.[\w.]+\(", body)
    return Launches(len(re.findall(r"\.run\(", body)), len(extern))


def _code(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> str:
    """Return the code that Inductor writes for a graph, as one of the device."""
    from torch._inductor import compile_fx
    from torch._inductor.exc import InductorError
    from torch._subclasses.fake_tensor import FakeTensorMode

    for node in graph.graph.nodes:
        node.meta.pop("val", None)  # found again, on the device
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": DEVICE}
    graph.recompile()
    with FakeTensorMode():
        there = [
            torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=DEVICE) if isinstance(x, Tensor) else x
            for x in examples
        ]
    with _pretended() as written:
        try:
            compile_fx.compile_fx_inner(graph, there)
        except (_Written, InductorError):
            if not written:
                raise
    return written[0]


@contextmanager
def _pretended() -> Iterator[list[str]]:
    """Answer Inductor's questions about the device, and stop it when the code is written: it goes into the list."""
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime.hints import DeviceProperties

    written: list[str] = []

    def write(self: Any) -> None:
        code = self.codegen()[0]
        written.append(getattr(code, "value", code))
        raise _Written

    facts = {name: value for name, value in A100.items() if name != "minor"}
    properties = DeviceProperties(type="cuda", index=0, cc=80, **facts)
    answers: dict[str, Any] = {
        "torch.cuda.get_device_properties": lambda *_: SimpleNamespace(
            **A100, total_memory=40 << 30, name="A100", gcnArchName=""
        ),
        "torch.cuda.get_device_capability": lambda *_: (8, 0),
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.device_count": lambda: 1,
        "torch._inductor.scheduler.has_triton": lambda: True,
        "torch.utils._triton.triton_hash_with_backend": lambda: "",
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch(name, answer))
        stack.enter_context(mock.patch.object(DeviceProperties, "create", lambda _: properties))
        stack.enter_context(mock.patch.object(GraphLowering, "compile_to_module", write))
        stack.enter_context(config.patch(fx_graph_cache=False, compile_threads=1))
        yield written
