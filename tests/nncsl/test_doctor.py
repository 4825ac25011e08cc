"""``nncsl doctor`` finds what is really wrong: packages are put in its way, folders taken from it."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from nncsl import doctor
from nncsl.version import __version__

ROOT = Path(__file__).parents[2]


def install(folder, name, version, *requires):
    """What pip would leave of a package besides its code."""
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    (place / "METADATA").write_text("\n".join(lines) + "\n")


def consult(*folders, cwd=None):
    path = os.pathsep.join(map(str, [*folders, ROOT]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "nncsl", "doctor"]
    done = subprocess.run(words, env=environment, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_packages_that_do_not_fit_are_named(tmp_path):
    install(tmp_path, "kernels", "0.9")
    install(tmp_path, "faiss-cpu", "1.15")
    install(tmp_path, "faiss-gpu", "1.15")
    install(tmp_path, "timm", "0.1", "torch>=99")
    install(tmp_path, "nncsl", "0.0.1", "numpy>=99", "absent-package>=2", "nothing; extra == 'dev'")
    said = consult(tmp_path, cwd=tmp_path)
    conflicts = said.split("conflicts:")[1].split("slow:")[0]
    assert "kernels (Hugging Face's)" in conflicts and "overwrite each other" in conflicts
    assert f"timm needs torch>=99, {metadata.version('torch')} is installed" in conflicts
    assert f"nncsl needs numpy>=99, {metadata.version('numpy')} is installed" in conflicts
    assert "nncsl needs absent-package>=2, which is not installed" in conflicts and "nothing" not in conflicts
    assert f"pip knows nncsl 0.0.1, this is {__version__}" in conflicts
    assert f"torch       {metadata.version('torch')}" in said and str(tmp_path) in said
    assert ("torch uses one of" in said) == (doctor.cores() > 1)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".dist-info"]


def test_the_disk_is_measured_and_left_as_it_was(tmp_path):
    disk = doctor.measure(tmp_path)
    assert 1 < disk.speed < 1e5 and disk.free > 0 and not list(tmp_path.iterdir())
    slow = [*doctor.slow(doctor.Disk(3.0, 10**9))]
    assert any("writes 3 MB/s" in line for line in slow) and any("1.0 GB are free" in line for line in slow)
    assert any("can't be written to" in line for line in doctor.slow(doctor.Disk(None, 10**12)))
