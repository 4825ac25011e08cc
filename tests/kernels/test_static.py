"""Every Triton kernel compiled ahead of time for GPUs that need not be here, within its budgets.

In a process of its own: the other tests run Triton in interpreter mode, where nothing can be compiled.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("triton")

CODE = """
import json, sys
from dataclasses import asdict
from nncsl.benchmarks.kernels_static import specs, usage

cases, dim, names = json.loads(sys.argv[1])
rows = []
for target, dtype in cases:
    for spec in specs(target, dtype, dim):
        if not names or spec.name in names:
            row = usage(spec, target, dtype, dim)
            rows.append({**asdict(row), "problems": row.problems()})
print(json.dumps(rows))
"""
HARDEST = ["small_nnd", "gradient (terms)"]


# Each maker's in one process: to import and start the compiler takes as long as to compile two kernels.
CASES = {
    "nvidia": [("sm_80", "fp16"), ("sm_80", "fp32"), ("sm_90", "bf16"), ("sm_100", "fp16")],
    "amd": [
        ("gfx90a", "fp16"),
        ("gfx942", "fp16"),
        ("gfx942", "fp32"),
        ("gfx950", "bf16"),
        ("gfx1100", "fp16"),
        ("gfx1201", "fp16"),
    ],
}


def compile_all(cases: list[tuple[str, str]], dim: int, names: list[str]) -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", CODE, json.dumps([cases, dim, names])]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("maker", list(CASES))
def test_kernels_compile_within_budgets(maker: str) -> None:
    """The two largest kernels; all of them are in the recorded table."""
    rows = compile_all(CASES[maker], 128, HARDEST)
    compiled = [(row["target"], row["dtype"], row["kernel"]) for row in rows]
    assert sorted(compiled) == sorted((*case, name) for case in CASES[maker] for name in HARDEST)
    assert not [(row["target"], row["kernel"], row["problems"]) for row in rows if row["problems"]]
    assert not [(row["target"], row["kernel"]) for row in rows if not row["tensor_core"]]
    torn = [row for row in rows if row["redundancy"] != 1 and not row["target"].startswith("gfx1")]
    assert not torn, torn


def test_a_gpu_without_matrix_units_has_no_tile_sizes() -> None:
    from nncsl.kernels import targets

    assert targets.kind_of("gfx1030") is None
