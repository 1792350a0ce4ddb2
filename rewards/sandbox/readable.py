"""The files that programs can read: the system's libraries, Python's and numpy's, and nothing that lies beside them.

A Python below a home directory, as conda, pyenv and uv make it, shares its folders with other things. So its
interpreter, its standard library and those of its shared libraries that these link to are named one by one.
"""

import importlib.util
import os
import struct
import sys
import sysconfig
from functools import cache
from pathlib import Path

INSIDE = Path(__file__).parent / "inside"
SYSTEM = ["/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"]
_LOADED, _DYNAMIC = 1, 2  # kinds of segment
_NEEDED, _NAMES, _NAMES_SIZE = 1, 5, 10  # tags of the dynamic table
DEVICES = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"]


def interpreter() -> Path:
    """The Python that programs run with: the one that runs us, without its virtual environment."""
    return Path(os.path.realpath(sys.executable))


def numpy_folders() -> list[Path]:
    """numpy's folders, the one library that programs get; empty where it isn't installed."""
    spec = importlib.util.find_spec("numpy")
    package = Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None
    return [folder for folder in (package, package.with_name("numpy.libs")) if folder.is_dir()] if package else []


@cache
def python_files() -> tuple[str, ...]:
    """The interpreter, the standard library's folders, and the shared libraries from Python's folder that they need."""
    paths = {os.path.realpath(_base_path(kind)) for kind in ("stdlib", "platstdlib")}
    base = Path(os.path.realpath(sys.base_prefix))
    if not any(base.is_relative_to(folder) for folder in SYSTEM):
        modules = [path for folder in paths for path in Path(folder, "lib-dynload").glob("*.so")]
        modules += [path for folder in numpy_folders() for path in folder.rglob("*.so*")]
        paths |= linked([interpreter(), *modules], base / "lib")
    return (*sorted(paths), str(interpreter()))


def hidden_folders() -> list[str]:
    """The folders of installed packages within the standard library's."""
    return sorted(folder for folder in {_base_path("purelib"), _base_path("platlib")} if os.path.isdir(folder))


def _base_path(kind: str) -> str:
    """A folder of the Python that a virtual environment was made from."""
    names = ("base", "installed_base", "platbase", "installed_platbase")
    return sysconfig.get_path(kind, vars=dict.fromkeys(names, sys.base_prefix))


def visible() -> list[str]:
    """What every program can read, all below included."""
    return [*SYSTEM, *python_files(), str(INSIDE), *map(str, numpy_folders())]


def linked(files: list[Path], folder: Path) -> set[str]:
    """The shared libraries in `folder` that the files link to, directly or by way of one another."""
    found: set[str] = set()
    waiting = list(files)
    while waiting:
        for name in needed(waiting.pop()):
            library = folder / name
            if str(library) not in found and library.is_file():
                found.add(str(library))
                waiting.append(library)
    return found


def needed(path: Path) -> list[str]:
    """The names of the libraries that a 64-bit little-endian ELF file links to; [] for another file."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:6] != b"\x7fELF\x02\x01":
                return []
            start, size, count = struct.unpack_from("<Q14xHH", head, 32)
            file.seek(start)
            segments = [struct.unpack_from("<I4xQQ8xQ", file.read(size)) for _ in range(count)]
            table: list[tuple[int, int]] = []
            for kind, at, _, length in segments:
                if kind == _DYNAMIC:
                    file.seek(at)
                    table = list(struct.iter_unpack("<qQ", file.read(length)))
            names, names_size = dict(table)[_NAMES], dict(table)[_NAMES_SIZE]
            for kind, at, address, length in segments:
                if kind == _LOADED and address <= names < address + length:
                    file.seek(at + names - address)
                    text = file.read(names_size)
                    return [text[begin:].partition(b"\0")[0].decode() for tag, begin in table if tag == _NEEDED]
    except (OSError, struct.error, KeyError, UnicodeDecodeError):
        pass  # linked to nothing, or damaged: then Python couldn't load it either
    return []
