"""Every Triton kernel compiled ahead of time for GPUs that need not be here, within its budgets.

In a process of its own: the other tests run Triton in interpreter mode, where nothing can be compiled.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

CODE = """
import json, sys
from dataclasses import asdict
from nncsl.benchmarks.kernels_static import TARGETS, specs, usage

target, dtype, dim, supports, everything = json.loads(sys.argv[1])
rows = []
for spec in specs(dtype, dim, TARGETS[target][0] == "hip", supports):
    if spec.multiplies or everything:
        row = usage(spec, target, dtype, dim)
        rows.append({**asdict(row), "problems": row.problems()})
print(json.dumps(rows))
"""


def compile_all(target: str, dtype: str, dim: int, supports: int, everything: bool) -> list[dict[str, object]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", CODE, json.dumps([target, dtype, dim, supports, everything])]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("target", "dtype", "everything"),
    [
        ("sm_80", "fp16", True),
        ("sm_90", "fp16", False),
        ("sm_100", "fp16", False),
        ("gfx942", "fp16", False),
        ("sm_80", "fp32", False),
        ("sm_80", "bf16", False),
    ],
)
def test_kernels_compile_within_budgets(target: str, dtype: str, everything: bool) -> None:
    rows = compile_all(target, dtype, 128, 32 if dtype == "fp32" else 64, everything)
    assert len(rows) == (11 if everything else 5)
    assert not [(row["kernel"], row["problems"]) for row in rows if row["problems"]]
    assert all(row["tensor_core"] for row in rows if row["multiplies"])
