"""The file formats: how each is written, and how it answers when it is read back."""

import importlib
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nncsl.errors import UserError
from nncsl.export.answering import Answering, Head, rebuilt
from nncsl.export.translations import translations

KEY = "nncsl"  # under which a file keeps its description, as JSON
Reread = Callable[[Tensor], Any]  # pixels to scores and probabilities, from the file


class Format(NamedTuple):
    """write(network, facts, path) returns how the file answers; needs: modules that have to be installed."""

    write: Callable[[Answering, dict[str, Any], Path], Reread]
    needs: tuple[str, ...]

    def check(self) -> None:
        """Say which package is missing, before anything is computed."""
        for name in self.needs:
            try:
                importlib.import_module(name)
            except ImportError as error:
                raise UserError(f'this format needs {name} ({error}): pip install "nncsl[export]"') from error


def write_weights(network: Answering, facts: dict[str, Any], path: Path) -> Reread:
    """Write names and tensors alone: for methods that a network and its head are enough for."""
    from safetensors.torch import save_file

    if not isinstance(network.judge, Head):
        raise UserError(
            f"{facts['method']} decides by {facts['decides_by']}: weights of a network alone would predict otherwise; "
            "use .onnx or .pt2, which hold all of it"
        )
    tensors = {name: value.contiguous() for name, value in network.judge.network.state_dict().items()}
    save_file(tensors, path, metadata={KEY: json.dumps(facts)})
    return read_weights(path)


def read_weights(path: str | Path) -> Answering:
    """Return the network of a .safetensors file: pixels in [0, 1] to scores and probabilities."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return rebuilt(json.loads(file.metadata()[KEY]), {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


def write_onnx(network: Answering, facts: dict[str, Any], path: Path) -> Reread:
    """Write an ONNX graph of any batch size."""
    import onnxruntime

    with _explained(facts, ".onnx"):
        program = torch.onnx.export(
            _lean(network),
            (_example(facts),),
            input_names=["pixels"],
            output_names=["scores", "probabilities"],
            dynamic_shapes=({0: "n"},),
            custom_translation_table=translations(),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props[KEY] = json.dumps(facts)
    program.save(str(path), external_data=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda pixels: session.run(None, {"pixels": pixels.numpy()})


def write_program(network: Answering, facts: dict[str, Any], path: Path) -> Reread:
    """Write torch's own format for programs, of any batch size."""
    with _explained(facts, ".pt2"):
        batch = torch.export.Dim("n")
        # Strict: otherwise a len() in a method would fix the batch size.
        program = torch.export.export(_lean(network), (_example(facts),), dynamic_shapes=({0: batch},), strict=True)
    torch.export.save(program, path, extra_files={f"{KEY}.json": json.dumps(facts)})
    return torch.export.load(path).module()


FORMATS = {
    ".safetensors": Format(write_weights, ("safetensors",)),
    ".onnx": Format(write_onnx, ("onnx", "onnxscript", "onnxruntime")),
    ".pt2": Format(write_program, ()),
}


def _lean(network: Answering) -> Answering:
    """Leave out the projector, which no head looks at."""
    if isinstance(network.judge, Head):
        network.judge.network.projector = nn.Sequential()
    return network


@contextmanager
def _explained(facts: dict[str, Any], suffix: str) -> Iterator[None]:
    """Turn what torch's exporters say of a method that they can't follow into one line; keep their warnings away."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about torch itself
            yield
    except Exception as error:
        said = str(error.__cause__ or error).strip().splitlines()
        reason = said[0] if said else type(error).__name__
        raise UserError(
            f"{facts['method']}, which decides by {facts['decides_by']}, can't be written as {suffix} ({reason}); "
            "try another format"
        ) from error


def _example(facts: dict[str, Any]) -> Tensor:
    return torch.zeros(2, *facts["input"]["shape"][1:])
