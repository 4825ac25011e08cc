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

TARGETS: dict[str, tuple[str, int | str, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "sm_120": ("cuda", 120, 32),
    "gfx942": ("hip", "gfx942", 64),
}
# Bytes of shared memory that one program may have (LDS on AMD).
SHARED_LIMIT = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "sm_120": 99 << 10, "gfx942": 64 << 10}
REGISTER_LIMIT = {"cuda": 255, "hip": 512}
TENSOR_CORE = re.compile(r"\b(HMMA|HGMMA|IMMA|UTCHMMA|UTCQMMA|UTCMMA|v_s?mfma)", re.IGNORECASE)


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

    def problems(self) -> list[str]:
        """Budgets that are exceeded."""
        found = []
        if self.registers > REGISTER_LIMIT[TARGETS[self.target][0]]:
            found.append(f"{self.registers} registers")
        if self.stack or self.spills:
            found.append(f"{self.stack} bytes of stack, {self.spills} spills")
        if self.shared > SHARED_LIMIT[self.target]:
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
    warps: int
    multiplies: bool


def specs(dtype: str, dim: int, hip: bool, supports: int) -> Iterator[Spec]:
    """Every kernel, with the tile sizes that the back end would choose for this type and dim."""
    from nncsl.kernels import triton_nnd, triton_snn, triton_tiles
    from nncsl.kernels.reference import EPS

    half = dtype != "fp32"
    shape = triton_snn.tile_shape(dim, half, hip)
    unit, raw = "*fp16" if half else "*fp32", f"*{dtype}"
    tile = shape.constants
    rows = {"D": dim, "DP": shape.padded, "BR": max(1, 2048 // shape.padded), "EPS": EPS}
    by_class = {"BN": 32, "BC": 32}
    yield Spec("units", triton_tiles.units_kernel, [raw, "*i64", unit, "i32"], rows, 4, False)
    for running in (False, True):
        name = "tile_sums (running maximum)" if running else "tile_sums"
        constants = {**tile, "GROUP": 16, "RUNNING": running}
        types = [unit, unit, "*i32", "*fp32", "i32", "i32", "fp32"]
        yield Spec(name, triton_tiles.tile_sums_kernel, types, constants, shape.warps, True)
    types = ["*fp32", "*i32", "*fp32", "i32", "i32"]
    yield Spec("class_sums", triton_tiles.class_sums_kernel, types, {"BN": 64, "BC": 16}, 4, False)
    types = ["*fp32", "*fp32", "i32", "i32", "fp32", "fp32"]
    yield Spec("probabilities", triton_snn.probabilities_kernel, types, by_class, 4, False)
    types = ["*fp32", "*fp32", "*fp32", "*fp32", "i32", "i32", "fp32"]
    yield Spec("weights", triton_snn.weights_kernel, types, by_class, 4, False)
    types = [unit, unit, "*i32", "*fp32", "*fp32", "*fp32", "i32", "i32", "fp32"]
    yield Spec("query_grad", triton_tiles.query_grad_kernel, types, {**tile, "GROUP": 16}, shape.warps, True)
    types = [unit, unit, "*i32", "*fp32", "*fp32", "*fp32", "i32", "fp32"]
    yield Spec("support_grad", triton_tiles.support_grad_kernel, types, tile, shape.warps, True)
    types = [raw, "*i64", "*fp32", "*fp32", "*i64", "*fp32", "i32", "i32", "fp32"]
    yield Spec("through_units", triton_tiles.through_units_kernel, types, rows, 4, False)
    types = ["*fp32"] * 4 + ["i32", "i32", "fp32", "fp32"]
    yield Spec("loss", triton_nnd.loss_kernel, types, {**by_class, "SMOOTH": True}, 4, False)
    small = triton_nnd.small_shape(supports, dim, half, hip)
    if small is not None:
        block_queries, block_supports, warps = small
        one_tile: dict[str, Any] = {
            "D": dim, "DP": shape.padded, "TD": dim, "TDP": shape.padded, "BN": block_queries, "BK": block_supports,
            "HALF": half, "TEACHER_HALF": half, "MASKED": True, "SMOOTH": True, "NEED_Q": True, "NEED_S": True,
            "PRECISION": triton_snn.tile_shape(dim, False, hip).precision, "EPS": EPS,
        }  # fmt: skip
        types = [raw] * 4 + ["*i64", "*u8"] + ["*fp32"] * 3 + ["i32"] * 3 + ["fp32"] * 4
        yield Spec(f"small_nnd (K={supports})", triton_nnd.small_nnd_kernel, types, one_tile, warps, True)


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
    compiled = triton.compile(source, target=GPUTarget(*TARGETS[target]), options={"num_warps": spec.warps})
    measure = _amd if backend == "hip" else _nvidia
    registers, stack, spills, tensor_core = measure(compiled)
    shared = compiled.metadata.shared
    return Usage(
        target, spec.name, dtype, dim, spec.warps, registers, stack, spills, shared, tensor_core, spec.multiplies
    )  # fmt: skip


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
                # The most supports that the one-launch kernel takes: 64 in half precision, 32 in fp32 at dim 128.
                most = 64 if dtype != "fp32" else max(16, min(64, 4096 // dim))
                for spec in specs(dtype, dim, TARGETS[target][0] == "hip", most):
                    yield usage(spec, target, dtype, dim)


def write(rows: list[Usage], path: Path) -> None:
    write_table(path, [asdict(row) for row in rows], [field.name for field in fields(Usage)])
