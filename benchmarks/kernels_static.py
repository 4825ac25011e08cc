"""Ahead-of-time compilation of every Triton kernel, without a GPU: what it needs of the machine.

One row per target, kernel and input type: registers, stack, spills, shared memory, tensor-core instructions.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from nncsl.files import write_table
from nncsl.kernels.targets import widest

from .kernels_bound import bound, redundancy, useful_rows

TARGETS: dict[str, tuple[str, int | str, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "sm_120": ("cuda", 120, 32),
    "gfx90a": ("hip", "gfx90a", 64),
    "gfx942": ("hip", "gfx942", 64),
    "gfx950": ("hip", "gfx950", 64),
    "gfx1100": ("hip", "gfx1100", 32),
    "gfx1201": ("hip", "gfx1201", 32),
}
# Bytes of shared memory that one program may have (LDS on AMD: 64 KiB, on gfx950 160).
SHARED_LIMIT = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "sm_120": 99 << 10, "gfx950": 160 << 10}
AMD_SHARED_LIMIT = 64 << 10
REGISTER_LIMIT = {"cuda": 255, "hip": 512}
TENSOR_CORE = re.compile(r"\b(HMMA|HGMMA|IMMA|UTCHMMA|UTCQMMA|UTCMMA|v_s?mfma|v_wmma)", re.IGNORECASE)


@dataclass(frozen=True)
class Usage:
    """What a compiled kernel needs; `tensor_core` counts its matrix instructions."""

    target: str
    kernel: str
    dtype: str
    dim: int
    warps: int
    registers: int
    stack: int
    spills: int
    shared: int
    tensor_core: int
    multiplies: bool  # whether the kernel has matrix products at all
    redundancy: float  # how many warps compute the same part of the product of queries and supports
    useful_rows: float  # of the supports in launched tiles, at K = 600
    bound: float | None  # computed share of the peak of matrix products, see kernels_bound

    def problems(self) -> list[str]:
        """Budgets that are exceeded."""
        found = []
        if self.registers > REGISTER_LIMIT[TARGETS[self.target][0]]:
            found.append(f"{self.registers} registers")
        if self.stack or self.spills:
            found.append(f"{self.stack} bytes of stack, {self.spills} spills")
        if self.shared > SHARED_LIMIT.get(self.target, AMD_SHARED_LIMIT):
            found.append(f"{self.shared} bytes of shared memory")
        if self.multiplies and not self.tensor_core:
            found.append("no tensor-core instruction")
        return found


@dataclass(frozen=True)
class Spec:
    """One kernel with its argument types and constants."""

    name: str
    function: Any
    types: list[str]  # of the arguments that are not constants
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 2
    multiplies: bool = False


def specs(target: str, dtype: str, dim: int) -> Iterator[Spec]:
    """Every kernel, with the tile sizes that the back end would choose for this target, type and dim."""
    from nncsl.kernels.fused import ROW_CLASSES, gradient, large, linear, rows, small
    from nncsl.kernels.reference import EPS
    from nncsl.kernels.targets import plan

    chosen = plan(dim, dtype != "fp32", target)
    raw, floats = f"*{dtype}", "*fp32"
    vectors = {"D": dim, "DP": chosen.width, "EPS": EPS}
    by_row = {**vectors, "BR": max(1, 2048 // chosen.width), "MASKED": True}
    tile = chosen.forward
    forward = {
        **vectors, "BN": tile.queries, "BK": tile.supports, "BC": tile.classes, "HALF": chosen.half, "MASKED": True,
        "SMOOTH": True, "PRECISION": chosen.precision, "SUM_PRECISION": chosen.sum_precision,
    }  # fmt: skip
    how: dict[str, Any] = {"warps": tile.warps, "stages": tile.stages, "multiplies": True}
    given = [raw, raw, "*i64", "*u8"]
    types = [*given, floats, floats, *["i32"] * 4, *["fp32"] * 3]
    yield Spec("small_snn", small.small_snn_kernel, types, {**forward, "KIND": "probability"}, **how)
    types = [*[raw] * 4, "*i64", "*u8", *[floats] * 4, *["i32"] * 4, *["fp32"] * 3]
    teacher = {"TD": dim, "TDP": chosen.width, "TEACHER_HALF": chosen.half, "TEACHER_PRECISION": chosen.precision}
    yield Spec("small_nnd", small.small_nnd_kernel, types, {**forward, **teacher}, **how)
    types = [*given, *[floats] * 3, "*i64", *[floats] * 3, *["i32"] * 5, *["fp32"] * 4]
    objective = {**forward, "BI": tile.queries // 4, "NEED": True}
    yield Spec("small_objective", small.small_objective_kernel, types, objective, **how)
    types = [raw, raw, "*i64", "*i32", "*i64", *[floats] * 3, *["i32"] * 3, "fp32"]
    parts = {name: forward[name] for name in ("D", "DP", "BN", "BK", "HALF", "PRECISION")}
    yield Spec("class_parts", large.class_parts_kernel, types, parts, **how)
    tile = chosen.gradient
    how = {"warps": tile.warps, "stages": tile.stages, "multiplies": True}
    types = [*given, "*i64", "*i64", *[floats] * 5, raw, floats, *["i32"] * 8, *["fp32"] * 5]
    for source, stored in (("given", "probability"), ("teacher", "mixed"), ("terms", "mixed")):
        for smooth in (False, True):
            constants = {
                **{name: value for name, value in forward.items() if name != "SUM_PRECISION"}, "BN": tile.queries,
                "BK": tile.supports, "BC": tile.classes, "SMOOTH": smooth, "SORTED": False, "STORED": stored,
                "SOURCE": source, "FINISH": True, "NEED_Q": True, "NEED_S": True,
            }  # fmt: skip
            name = f"gradient ({source}{', smoothed' if smooth else ''})"
            yield Spec(name, gradient.gradient_kernel, types, constants, **how)
    sorted_types = [kind if kind != raw or i < 2 else floats for i, kind in enumerate(types)]
    constants = {**constants, "SORTED": True, "FINISH": False}
    yield Spec("gradient (many supports)", gradient.gradient_kernel, sorted_types, constants, **how)
    types = [raw, "*u8", "*i64", floats, floats, raw, *["i32"] * 5, "fp32"]
    yield Spec("finish", gradient.finish_kernel, types, {**by_row, "SORTED": True})
    types = [raw, "*i64", "*u8", floats, *["i32"] * 3]
    yield Spec("inverse_lengths", large.inverse_lengths_kernel, types, {**by_row, "LABELED": True})
    by_class = {"BN": 32, "BC": ROW_CLASSES, "SMOOTH": True}
    types = [floats, floats, "*i64", floats, floats, *["i32"] * 3, "fp32", "fp32"]
    yield Spec("combine", large.combine_kernel, types, {**by_class, "BC": 32, "KIND": "mixed"})
    types = [*[floats] * 3, "i32", "i32", "fp32", "fp32"]
    yield Spec("distill", rows.distill_kernel, types, by_class)
    types = [*[floats] * 2, "*i64", *[floats] * 3, *["i32"] * 3, *["fp32"] * 3]
    constants = {"SMOOTH": True, "NEED": True, "BI": 8, "BC": ROW_CLASSES}
    yield Spec("objective", rows.objective_kernel, types, constants, warps=8)
    types = [*[floats] * 7, *["i32"] * 4, *["fp32"] * 3]
    yield Spec("finish_objective", rows.finish_objective_kernel, types, {**by_class, "NEED": True})
    types = [raw, "*i64", "*u8", floats, floats, "i32", "i32"]
    constants = {"BR": linear.ROWS, "BC": linear.CLASSES}
    yield Spec("cross_entropy", linear.cross_entropy_kernel, types, constants, warps=8)
    types = [raw, "*i64", "*u8", floats, floats, raw, floats, *["i32"] * 3]
    constants = {"BR": linear.ROWS, "BC": linear.GRADIENT_CLASSES}
    yield Spec("cross_entropy_gradient", linear.cross_entropy_gradient_kernel, types, constants)


def usage(spec: Spec, target: str, dtype: str, dim: int) -> Usage:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    free = [name for name in spec.function.arg_names if name not in spec.constants]
    signature = dict.fromkeys(spec.constants, "constexpr") | dict(zip(free, spec.types, strict=True))
    names = spec.function.arg_names
    # What the launcher finds out by itself for freshly allocated tensors: pointers are multiples of 16 bytes.
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in free if signature[n].startswith("*")}
    source = ASTSource(spec.function, {n: signature[n] for n in names}, spec.constants, attrs)
    backend = TARGETS[target][0]
    compiled = triton.compile(
        source, target=GPUTarget(*TARGETS[target]), options={"num_warps": spec.warps, "num_stages": spec.stages}
    )
    measure = _amd if backend == "hip" else _nvidia
    registers, stack, spills, tensor_core = measure(compiled)
    shared = compiled.metadata.shared
    return Usage(
        target, spec.name, dtype, dim, spec.warps, registers, stack, spills, shared, tensor_core, spec.multiplies,
        *(_of_tile(spec, target, dim) if spec.multiplies else (1.0, 1.0, None)),
    )  # fmt: skip


def _of_tile(spec: Spec, target: str, dim: int) -> tuple[float, float, float | None]:
    """Redundancy of products, useful rows, and the bound."""
    constants = spec.constants
    repeated = redundancy(constants["BN"], constants["BK"], spec.warps, TARGETS[target][0] == "hip")
    share = bound(spec.name, target, dim, constants, repeated)
    return repeated, round(useful_rows(constants["BK"]), 3), None if share is None else round(share, 3)


def _nvidia(compiled: Any) -> tuple[int, int, int, int]:
    """Registers, stack, spills and tensor-core instructions of a cubin, by the tools that come with triton."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        resources = _run(tools / "cuobjdump", "-res-usage", cubin)
        code = _run(tools / "nvdisasm", "-c", cubin)
    registers, stack = (int(re.search(rf"{name}:(\d+)", resources)[1]) for name in ("REG", "STACK"))  # type: ignore[index]
    spills = len(re.findall(r"\b(?:STL|LDL)\b", code))
    return registers, stack, spills, len(TENSOR_CORE.findall(code))


def _amd(compiled: Any) -> tuple[int, int, int, int]:
    """The same from the assembler listing: vector registers, scratch, spills, MFMA instructions."""
    code = compiled.asm["amdgcn"]

    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", code)
        return int(found[1]) if found else 0

    # Scalar registers spill into vector registers, not into memory.
    spills = number("vgpr_spill_count")
    return number("vgpr_count"), number("private_segment_fixed_size"), spills, len(TENSOR_CORE.findall(code))


def _run(*command: Any) -> str:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout


def table(targets: list[str], dtypes: list[str], dims: list[int]) -> Iterator[Usage]:
    for target in targets:
        for dtype in dtypes:
            for dim in dims:
                if dim > widest(dtype != "fp32", target):  # goes to the blockwise back end
                    continue
                for spec in specs(target, dtype, dim):
                    yield usage(spec, target, dtype, dim)


def write(rows: list[Usage], path: Path) -> None:
    write_table(path, [asdict(row) for row in rows], [field.name for field in fields(Usage)])
