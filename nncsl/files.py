"""Files are complete or not there: written beside their name, synced, then renamed over the old one.

What is written to is always a new file under a name that nobody can foresee, and a link is never followed: a rename
replaces it. Whatever gets a name is synced into its folder, and so is a folder that is made on the way. And files are
read within bounds: whoever wrote them, a command ends with an answer.
"""

import csv
import errno
import io
import json
import os
import re
import secrets
import shutil
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from nncsl.errors import ConfigError, UserError, shown, visible

_ADVICE = "make room or choose another --out"
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_BESIDE = re.compile(r"^\.(.*?)(?:\.[0-9a-f]{16})?\.new(\..*)?$")  # older versions could be foreseen
_CJK_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans SC", "Source Han Sans SC"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "IPAGothic", "NanumGothic"),
    *("PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic"),
)
_LONGEST_TEXT = 4096
_KIND = re.compile("^(folder|csv|hf):")  # of a data set, before its path
_LONGEST_NAME = 255  # bytes of a file's name, on every common file system
LARGEST_TEXT = 32 << 20  # bytes of a file that is read as a whole: configurations, journals, summaries
# A spreadsheet takes cells that begin like this for formulas and executes them; file and class names are anybody's.
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?(e[+-]?\d+)?|inf|nan)")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@contextmanager
def written_beside(
    target: Path, *, size: int = 0, advice: str = _ADVICE, before_rename: Callable[[Path], object] | None = None
) -> Iterator[Path]:
    """Give a path to write to; it gets the name ``target`` when the block ends well and is removed when it does not.

    size: about as many bytes as will be written, for the message when the disk is full. before_rename: hears of the
    file when it is complete and synced, and still has its other name.
    """
    if target.exists() and not target.is_file():  # root could rename over a device: /dev/null would be gone
        raise UserError(f"{target} can't be written: it is there and not a regular file; choose another name")
    beside = name_beside(target)
    try:
        make_folder(target.parent)
        os.close(os.open(beside, _NEW, 0o666))
        yield beside
        with beside.open("rb+") as file:  # Windows syncs only what could be written to
            os.fsync(file.fileno())
        if before_rename is not None:
            before_rename(beside)
        beside.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise UserError(f"{target} can't be written: {_reason(error, target.parent, size)}; {advice}") from error
    finally:
        with suppress(OSError):  # renamed, or never made
            beside.unlink()


def name_beside(target: Path) -> Path:
    """Return a name in the same folder that nobody can foresee; the suffix stays: plotting libraries look at it."""
    return target.with_name(f".{target.stem}.{secrets.token_hex(8)}.new{target.suffix}")


def without_beside(name: str) -> str:
    """Return the name of the file that ``name`` was to become, if :func:`name_beside` has made it; or ``name``."""
    return _BESIDE.sub(r"\1\2", name)


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed have left beside their files, for the folder's one owner."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if without_beside(path.name) != path.name:
            path.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, each synced into the one above."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def append(target: Path, text: str) -> None:
    """Add to the end of a file, durably once the file has been synced into its folder."""
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o666)
    with os.fdopen(handle, "a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_file(
    target: Path,
    write: Callable[[BinaryIO], object],
    *,
    size: int,
    advice: str = _ADVICE,
    before_rename: Callable[[Path], object] | None = None,
) -> None:
    """Write what ``write`` puts into an open file. The room is taken first, so that a full disk is noticed before.

    The alternative, to put the file together in memory, takes twice its size.
    """
    with (
        written_beside(target, size=size, advice=advice, before_rename=before_rename) as beside,
        beside.open("rb+") as file,
    ):
        _reserve(file, size)
        write(file)
        file.truncate()


def write_bytes(target: Path, content: bytes | memoryview) -> None:
    """Write a small file."""
    write_file(target, lambda file: file.write(content), size=len(content))


def write_text(target: Path, text: str) -> None:
    """Write a small text file. Of names that are not UTF-8 it has what can be read."""
    write_bytes(target, text.encode(errors="backslashreplace"))


def write_figure(target: Path, figure: Any, *, dpi: int, advice: str = _ADVICE) -> None:
    """Write a matplotlib figure. Names in Chinese, Japanese or Korean get a font that has them, where there is one."""
    from matplotlib.font_manager import get_font_names
    from matplotlib.text import Text

    there = set(get_font_names())
    families = ["DejaVu Sans", *(name for name in _CJK_FONTS if name in there)]
    for label in figure.findobj(Text):
        label.set_fontfamily(families)
        label.set_text(visible(label.get_text()))  # matplotlib takes no names that are not UTF-8
    with written_beside(target, advice=advice) as beside, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # shown as a box, which says it as well
        figure.savefig(beside, dpi=dpi)


def write_table(target: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Write rows as csv; what a row does not have is an empty cell."""
    write_text(target, as_csv(rows, columns))


def as_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return rows as csv, with a header; no cell that is text begins as a formula does."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(harmless, columns))
    for row in rows:
        cells = [row.get(column, "") for column in columns]
        writer.writerow([harmless(c) if isinstance(c, str) and not _NUMBER.fullmatch(c) else c for c in cells])
    return text.getvalue()


def harmless(text: str) -> str:
    """Return the text with an apostrophe before it, which spreadsheets hide, where they would execute it."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def open_regular(path: Path, most: int | None = None) -> BinaryIO:
    """Open a regular file of at most so many bytes; an OSError says why not: a pipe could keep its reader for ever."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        why = "it is not a regular file"
    elif most is not None and found.st_size > most:
        why = f"it has {found.st_size:,} bytes, more than {most:,}"
    else:
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(why)


def reason(error: Exception) -> str:
    """Return why a file can't be read, without its name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def read_bytes(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """Return what a regular file of at most so many bytes holds; devices, pipes and larger files are refused unread."""
    with _opened(path, most) as file:
        return file.read(most)


def check_regular(path: Path, most: int = LARGEST_TEXT) -> None:
    """Refuse what :func:`read_bytes` refuses, for those who read it in another way."""
    with _opened(path, most):
        pass


@contextmanager
def _opened(path: Path, most: int) -> Iterator[BinaryIO]:
    try:
        with open_regular(path, most) as file:
            yield file
    except (OSError, ValueError) as error:  # of the latter kind: a name with a zero byte
        raise UserError(f"{path} can't be read: {reason(error)}; is it there, whole, and yours?") from error


def read_text(path: Path, most: int = LARGEST_TEXT) -> str:
    """Return the text of such a file."""
    try:
        return read_bytes(path, most).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} can't be read: it is not UTF-8 text; copy the run anew or start it again") from error


def read_json(path: Path, most: int = LARGEST_TEXT) -> Any:
    """Return the value in such a file."""
    return parse_json(read_text(path, most), path)


def parse_json(text: str, path: Path) -> Any:
    """Return the value that json text from a file stands for."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else error
        raise UserError(f"{path} can't be read ({reason}): copy the run anew or start it again") from error


def check_text(text: str, name: str) -> None:
    """Refuse text that no setting needs: overlong, with control characters, or not UTF-8."""
    if len(text) > _LONGEST_TEXT:
        raise ConfigError(f"{name}={shown(text)}: expected at most {_LONGEST_TEXT} characters, got {len(text)}")
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ConfigError(f"{name}={shown(text)}: expected text without control characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name}={shown(text)}: expected UTF-8; rename the file or folder") from None


def check_path(text: str, name: str) -> None:
    """Refuse a path that no file system takes, before anything is made of it."""
    path = _KIND.sub("", text)
    longest = max((len(part) for part in os.fsencode(path).split(b"/")), default=0)
    if longest > _LONGEST_NAME:
        raise ConfigError(
            f"{name}={shown(text)}: a name in it has {longest} bytes, file systems take {_LONGEST_NAME}; shorten it"
        )


def expanded(text: str, *, absolute: bool = False) -> Path:
    """Return a path with ~ replaced by the home folder; absolute: and without links."""
    try:
        path = Path(text).expanduser()
        return path.resolve() if absolute else path
    except (RuntimeError, OSError) as error:  # nobody's home, or a link to itself
        raise ConfigError(f"{shown(text)} is no usable path: {error}") from error


def _reserve(file: BinaryIO, size: int) -> None:
    if not size or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # file systems that can't
            raise


def sync_folder(path: Path) -> None:
    """Make a rename in the folder survive a power loss; Windows opens no folders, and keeps a rename without that."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: OSError, folder: Path, size: int) -> str:
    if error.errno != errno.ENOSPC:
        return error.strerror or str(error)
    needed = f"{size / 1e6:.2f} MB needed, " if size else ""
    return f"{error.strerror} ({needed}{shutil.disk_usage(folder).free / 1e6:.2f} MB free)"
