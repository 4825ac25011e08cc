"""What people get who install nncsl: the wheel, beside Hugging Face's `kernels`, far from any checkout.

The wheel is built as pip builds it, and a new environment gets it and the other package from PyPI. Torch and what else
is heavy is borrowed from the environment of the tests, never downloaded.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

from nncsl.version import __version__

ROOT = Path(__file__).parents[1]
LINKED = ("kernels", "featurebank", "benchmarks")  # lie beside nncsl/, are installed below it
FEW_RETRIES = ("--retries", "1", "--timeout", "15")  # a machine without a network should skip soon

# What a user of each package does, by the name that it is installed under.
USES = {
    "nncsl": """
import pathlib, nncsl, torch
from nncsl.featurebank import FeatureBank
from nncsl.kernels import snn
vectors = torch.eye(3, 8)
assert snn(vectors, vectors, torch.arange(3), num_classes=3).argmax(1).tolist() == [0, 1, 2]
with FeatureBank.create("bank", dim=8, codec="fp32", teacher="a name") as bank:
    bank.write([7], [0], vectors[:1])
    bank.commit()
with FeatureBank.open("bank") as bank:
    assert torch.equal(torch.as_tensor(bank.read([7], [0])), vectors[:1])
print(pathlib.Path(nncsl.__file__).parents[1])
""",
    "kernels": """
import kernels, pathlib, torch
assert callable(kernels.get_kernel) and not hasattr(kernels, "snn")
@kernels.use_kernel_forward_from_hub("Doubled")
class Doubled(torch.nn.Module):
    def forward(self, values):
        return 2 * values
assert Doubled()(torch.ones(2)).tolist() == [2, 2]
print(pathlib.Path(kernels.__file__).parents[1])
""",
}


def run(*words, cwd):
    """Runs a command in a folder, without the paths and settings that would lead back to the checkout."""
    without = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    environment = {**without, "PYTHONNOUSERSITE": "1"}
    return subprocess.run(list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=200)


def pip(*words, cwd, python=sys.executable):
    """Lets the pip of the tests work on an environment; skips where PyPI is needed and out of reach."""
    pytest.importorskip("pip", reason="pip is not installed here")
    done = run(sys.executable, "-m", "pip", "--python", python, "--no-input", *words, cwd=cwd)
    if done.returncode:
        said = done.stdout + done.stderr
        unreachable = re.search(r"from versions: none|connection|timed out", said, flags=re.IGNORECASE)
        if unreachable and set(FEW_RETRIES) <= set(words):
            pytest.skip(f"PyPI can't be reached: {said.strip().splitlines()[-1]}")
        pytest.fail(f"pip {' '.join(map(str, words))}\n{said}")


def tracked():
    """The files of the checkout that git knows, links as themselves."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip(f"needs a git checkout, {ROOT} is none")
    return [Path(name) for name in listed.stdout.split("\0") if name and os.path.lexists(ROOT / name)]


class Environment:
    """A virtual environment that has nothing of nncsl, and what is heavy from the environment of the tests."""

    def __init__(self, folder):
        """Creates it, with a folder for commands to run in."""
        self.cwd = folder / "elsewhere"
        self.cwd.mkdir()
        venv.create(folder / "venv", symlinks=True)
        self.bin = folder / "venv" / "bin"
        self.python = self.bin / "python"
        (self.packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
        # Links to all but what is tested here, instead of the folder itself: pip must not take the nncsl that is
        # installed there for ours, nor Python import it.
        borrowed = folder / "borrowed"
        borrowed.mkdir()
        for place in map(Path, sys.path):
            if place.name in ("site-packages", "dist-packages"):
                for path in place.iterdir():
                    known = (borrowed / path.name).is_symlink()
                    if not known and not re.match(r"(nncsl|kernels|__editable__.*)\b", path.name):
                        (borrowed / path.name).symlink_to(path)
        (self.packages / "borrowed.pth").write_text(f"{borrowed}\n")

    def pip(self, *words):
        """Installs and uninstalls."""
        pip(*words, cwd=self.cwd, python=self.python)

    def use(self, *codes):
        """Runs pieces of code in one process; returns where what they import is from."""
        shutil.rmtree(self.cwd / "bank", ignore_errors=True)
        done = run(self.python, "-c", "\n".join(codes), cwd=self.cwd)
        assert done.returncode == 0, done.stderr
        return [Path(line) for line in done.stdout.splitlines()]

    def imports(self, name):
        """Tells whether there is such a module."""
        return run(self.python, "-c", f"import {name}", cwd=self.cwd).returncode == 0

    def command(self, *words):
        """Runs the console script; returns what it prints."""
        done = run(self.bin / "nncsl", *words, cwd=self.cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy: setuptools leaves build/ and *.egg-info beside what it builds."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked():
        target = folder / "copy" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    pip("wheel", *FEW_RETRIES, "--no-deps", "-w", folder, folder / "copy", cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, wheel):
    """An environment with what Hugging Face's `kernels` needs, and the wheels by name, not installed yet."""
    folder = tmp_path_factory.mktemp("environment")
    environment = Environment(folder)
    environment.pip("download", *FEW_RETRIES, "--no-deps", "--only-binary", ":all:", "-d", folder, "kernels")
    (theirs,) = folder.glob("kernels-*.whl")
    # torch is found among what is borrowed: should the package ever demand it, pip has no reason to fetch it.
    environment.pip("install", *FEW_RETRIES, "--only-binary", ":all:", "--no-compile", theirs)
    environment.pip("uninstall", "--yes", "kernels")
    return environment, {"nncsl": wheel, "kernels": theirs}


@pytest.fixture
def installing(prepared):
    """The environment and a function that installs by name; nothing of it outlives the test."""
    environment, wheels = prepared

    def install(name):
        environment.pip("install", "--no-index", "--no-deps", "--no-compile", wheels[name])

    yield environment, install
    environment.pip("uninstall", "--yes", *wheels)
    assert not [path.name for path in environment.packages.iterdir() if path.name.startswith(("nncsl", "kernels"))]


def test_the_wheel_has_every_file_and_one_name_at_its_top_level(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    assert {name.split("/")[0] for name in names} == {"nncsl", f"nncsl-{__version__}.dist-info"}
    expected = set()
    for path in tracked():
        recorded = path.parts[:2] == ("benchmarks", "results")
        if path.parts[0] in ("nncsl", *LINKED) and not (ROOT / path).is_dir() and path.suffix != ".md" and not recorded:
            expected.add((Path("nncsl") / path if path.parts[0] in LINKED else path).as_posix())
    assert {name for name in names if name.startswith("nncsl/")} == expected
    # The comparison must have had something to compare.
    for name in (
        "kernels/ops.py",
        "featurebank/bank.py",
        "benchmarks/accuracy/tables.py",
        "report/style.css",
        "py.typed",
    ):
        assert f"nncsl/{name}" in expected
    assert {".py", ".yaml", ".txt", ".css", ".js", ".csv"} <= {Path(name).suffix for name in expected}


def test_the_wheel_names_its_license(wheel):
    folder = f"nncsl-{__version__}.dist-info"
    with zipfile.ZipFile(wheel) as opened:
        metadata = Parser().parsestr(opened.read(f"{folder}/METADATA").decode())
        assert opened.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert (metadata["Version"], metadata["License-Expression"]) == (__version__, "Apache-2.0")


@pytest.mark.parametrize("order", list(itertools.permutations(["nncsl", "kernels"])), ids=" then ".join)
def test_it_lives_beside_the_kernels_of_hugging_face(installing, order):
    environment, install = installing
    for name in order:
        install(name)
    assert environment.use(*(USES[name] for name in order)) == [environment.packages] * 2
    first, second = order
    environment.pip("uninstall", "--yes", first)
    assert not environment.imports(first)
    assert environment.use(USES[second]) == [environment.packages]


def test_the_installed_command_works_without_a_checkout(installing):
    environment, install = installing
    install("nncsl")
    assert not environment.imports("kernels") and not environment.imports("featurebank")
    assert environment.command("--version").split()[:2] == ["nncsl", __version__]
    assert yaml.safe_load(environment.command("config", "--preset", "cifar100"))["dataset"] == "cifar100"


def test_the_installed_command_finds_the_benchmarks(installing):
    environment, install = installing
    install("nncsl")
    assert "usage:" in environment.command("bench", "views", "--help")


def test_the_short_names_work_in_a_checkout():
    code = "import featurebank, kernels\nfor module in (kernels, featurebank): print(module.__file__)"
    found = run(sys.executable, "-c", code, cwd=ROOT)
    assert found.returncode == 0, found.stderr
    expected = [ROOT / name / "__init__.py" for name in ("kernels", "featurebank")]
    assert list(map(Path, found.stdout.splitlines())) == expected


def test_the_package_runs_as_a_module():
    shown, refused = (run(sys.executable, "-m", "nncsl", *words, cwd=ROOT) for words in (["--help"], ["absent"]))
    assert shown.returncode == 0 and shown.stdout.startswith("usage: nncsl ") and not shown.stderr
    assert refused.returncode == 2 and "invalid choice: 'absent'" in refused.stderr


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and citation["message"] and citation["authors"]
    assert (citation["title"], citation["version"], citation["license"]) == ("nncsl", __version__, "Apache-2.0")
    assert citation["preferred-citation"]["title"] in (ROOT / "README.md").read_text()
