"""Files as an attacker or a broken disk would leave them: damaged, of another kind, endless, forged."""

import base64
import hashlib
import io
import json
import os
import random
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

ESCAPE = "\x1b]0;owned\x07\x1b[2J"  # sets a terminal's title, clears it
BIDI = "\u202egnp.exe"
MARKUP = '"><img src=http://evil.example/x onerror=alert(1)><script>alert(1)</script>'
FORMULA = "=HYPERLINK(0)"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
)
DEEP = 100_000
Spoil = Callable[[Path, random.Random], object]


def _rewritten(change: Callable[[bytes, random.Random], bytes]) -> Spoil:
    def spoil(path: Path, rng: random.Random) -> None:
        path.write_bytes(change(path.read_bytes(), rng))

    return spoil


def _flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content or b"\0")
    place = rng.randrange(len(changed))
    changed[place] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _zeroed(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(max(1, len(content)))
    return content[:start] + bytes(min(512, len(content) - start)) + content[start + 512 :]


def _instead(make: Callable[[Path], object]) -> Spoil:
    def spoil(path: Path, rng: random.Random) -> None:
        path.unlink()
        make(path)

    return spoil


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(8 << 30)


# What can happen to any file.
DAMAGES: dict[str, Spoil] = {
    "missing": lambda path, rng: path.unlink(),
    "empty": lambda path, rng: path.write_bytes(b""),
    "cut": _rewritten(lambda content, rng: content[: rng.randrange(max(1, len(content)))]),
    "flipped": _rewritten(_flipped),
    "flipped again": _rewritten(lambda content, rng: _flipped(_flipped(content, rng), rng)),
    "zeroed": _rewritten(_zeroed),
    "noise": _rewritten(lambda content, rng: rng.randbytes(max(1, len(content)))),
    "not utf-8": _rewritten(lambda content, rng: content[:1] + b"\xff\xfe" + content[1:]),
    "longer": _rewritten(lambda content, rng: content + b"\n{]"),
    "folder": _instead(Path.mkdir),
    "fifo": _instead(os.mkfifo),
    "endless": _instead(lambda path: path.symlink_to("/dev/zero")),
    "loop": _instead(lambda path: path.symlink_to(path)),
    "sparse": _instead(_sparse),
}

# What json and yaml can hold that no run wrote.
VALUES: dict[str, str] = {
    "null": "null",
    "number": "7",
    "text": '"text"',
    "list": "[1, 2, [3]]",
    "mapping": '{"tasks": 1, "kind": [], "config": {}}',
    "deep": "[" * DEEP,
    "deep mapping": '{"a":' * DEEP,
    "digits": "9" * 5000,
    "nan": "[NaN, Infinity, -Infinity]",
    "repeated key": '{"a": 1, "a": 2}',
}


def replace_values(path: Path, put: object) -> None:
    """Replace one value after the other of a json file's content, down to its leaves, by something else."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps(_replaced(content, put)))


def _replaced(content: object, put: object) -> object:
    if isinstance(content, dict):
        return {key: _replaced(value, put) for key, value in content.items()}
    if isinstance(content, list):
        return [_replaced(value, put) for value in content]
    return put


@cache
def bomb_archive(member: str, size: int = 3 << 29) -> bytes:
    """Return a small .npz file whose ``member`` unpacks to ``size`` zero bytes."""
    content, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (size,)})
    with (
        zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(f"{member}.npy", "w", force_zip64=True) as file,
    ):
        file.write(header.getvalue())
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return content.getvalue()


def promising_archive(path: Path, member: str) -> None:
    """Write an .npz file whose array says that it is far larger than its file."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{member}.npy", header.getvalue() + bytes(64))


def compressed(path: Path) -> None:
    """Write a zip file's members anew, compressed, its tensors with 64 MB of zeros behind each."""
    other = path.with_name("other.zip")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new:
        for member in old.namelist():
            with new.open(member, "w", force_zip64=True) as file:
                file.write(old.read(member))
                if "/data/" in member:
                    for _ in range(64):
                        file.write(bytes(1 << 20))
    other.replace(path)


def forge_snapshot(path: Path) -> None:
    """Give a snapshot class names that are markup, escapes and formulas."""
    with np.load(path) as saved:
        arrays = {name: saved[name] for name in saved.files}
    names = [MARKUP, ESCAPE, BIDI, FORMULA]
    arrays["class_names"] = np.array([names[i % 4] + str(i) for i in range(len(arrays["class_names"]))])
    np.savez(path, **arrays)


def misshape_snapshot(path: Path, rng: random.Random) -> None:
    """Give one array of a snapshot another shape or type, its name and the others unchanged."""
    with np.load(path) as saved:
        arrays = {name: saved[name] for name in saved.files}
    name = rng.choice(sorted(arrays))
    others = [np.zeros(3), np.zeros((2, 2), np.int64) - 5, np.array("text"), np.full((4, 4), np.nan), np.zeros(0)]
    np.savez(path, **(arrays | {name: rng.choice(others)}))


def png(path: Path, side: int = 8) -> None:
    """Write a small gray image without the help of a library, so that its name may be anything."""
    rows = b"".join(b"\0" + bytes((7 * x * y) % 256 for x in range(side)) for y in range(side))
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    chunks = (struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in parts)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


NAMES = {
    "escape": ESCAPE,
    "bidi": BIDI,
    "line": "a\nnncsl: all is well",
    "markup": "<img src=x onerror=alert(1)>",
    "formula": FORMULA,
    "rich": "[bold red]x[/]",
    "bytes": os.fsdecode(b"caf\xe9\xff"),
    "wide": "画像",
    "long": "n" * 250,
}


def image_folder(path: Path, name: str) -> None:
    """Make a data set of two classes of six images each, the first class of that name, its images too."""
    for each in (name.replace("/", "_"), "plain"):
        (path / each).mkdir(parents=True)
        for number in range(6):
            png(path / each / f"{each[:20]}{number}.png")


def reseal(current: Path, key: str, put: object) -> None:
    """Change a field of the manifest that a bank's CURRENT names, and make the checksums right again: a forger can."""
    lines = current.read_text().splitlines()
    name = lines[0].split()[0]
    path = current.with_name(name)
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: put}))
    seal(current, [f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}", *lines[1:-1]])


def seal(current: Path, lines: list[str]) -> None:
    """Write CURRENT with these lines and their checksum."""
    body = "".join(f"{line}\n" for line in lines).encode()
    current.write_bytes(body + f"checksum {hashlib.sha256(body).hexdigest()}\n".encode())


def endless_manifest(current: Path) -> None:
    """Let CURRENT name /dev/zero as a manifest."""
    seal(current, [f"/dev/zero {'0' * 64}", "next-generation 9"])


def forged_views(how: str) -> str:
    """Return the content of a views.json that nncsl did not write."""
    real = "data:image/png;base64," + base64.b64encode(b"x").decode()
    return json.dumps(
        {
            "http": {"large": ["http://evil.example/x.png", real]},
            "script": {"<script>alert(1)</script>": ["javascript:alert(1)"]},
            "svg": {"large": ["data:image/svg+xml,<svg onload=alert(1)>", "data:text/html,<script>alert(1)</script>"]},
            "types": {"large": 7},
            "list": [1, 2],
            "quote": {"large": ['data:image/png;base64,AA" onerror="alert(1)']},
        }[how]
    )


def copied(template: Path, target: Path) -> Path:
    """Copy a run's folder."""
    return Path(shutil.copytree(template, target))
