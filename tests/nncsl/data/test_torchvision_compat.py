"""torchvision can be imported here, whether or not its compiled operators can."""

import subprocess
import sys

import pytest


def run(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)


def test_a_fresh_process_gets_a_working_torchvision():
    result = run(
        "from nncsl.data.torchvision_compat import torchvision\n"
        "import torch, torchvision.transforms.functional as F\n"
        "from torchvision.models import resnet18\n"
        "assert torchvision is __import__('torchvision')\n"
        "assert F.hflip(torch.arange(3)[None]).tolist() == [[2, 1, 0]]\n"
        "assert resnet18().fc.out_features == 1000\n"
        "print(torchvision.__version__)\n"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_other_failures_are_not_hidden():
    """A torchvision that is broken in another way must say so itself."""
    result = run(
        "import importlib.abc, sys\n"
        "class Broken(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'torchvision':\n"
        "            raise RuntimeError('disk on fire')\n"
        "sys.meta_path.insert(0, Broken())\n"
        "import nncsl.data.torchvision_compat\n"
    )
    assert result.returncode != 0 and "disk on fire" in result.stderr


def test_nothing_is_declared_where_the_plain_import_works():
    if run("import torchvision").returncode:
        pytest.skip("the plain import fails on this machine")
    result = run("import nncsl.data.torchvision_compat as compat\nassert not compat._declared")
    assert result.returncode == 0, result.stderr
