"""Images as files: read what `docker save` wrote, add layers, write it again.

What is written is an OCI image layout (image-spec, "Image Layout") that also has the
``manifest.json`` of Docker's own format, so that `docker load` of any version, Podman and skopeo
read it. Layers of the base are taken over byte for byte.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from jupyter_timetravel.containers.errors import ContainerError
from jupyter_timetravel.exchange.layers import LayerEntry
from jupyter_timetravel.exchange.members import Writer

_PIECE: Final = 1 << 20
_LARGEST_TEXT: Final = 64 << 20
_OCI: Final = "application/vnd.oci.image"
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True)
class Layer:
    """One layer as a file: its bytes are what the digest is of."""

    path: Path
    digest: str
    size: int
    packed: bool = False

    @property
    def media_type(self) -> str:
        return f"{_OCI}.layer.v1.tar{'+gzip' if self.packed else ''}"


@dataclass
class Image:
    """The configuration (image-spec, "Image Configuration") and the layers, the lowest first."""

    config: dict[str, Any]
    layers: list[Layer] = field(default_factory=list)

    def add(self, layer: Layer, said: str) -> None:
        """Put a layer on top. said: where it comes from, in words."""
        self.layers.append(layer)
        self.config.setdefault("rootfs", {"type": "layers"}).setdefault("diff_ids", []).append(
            f"sha256:{layer.digest}"
        )
        self.config.setdefault("history", []).append({"created_by": said})


def read(file: Path, directory: Path) -> Image:
    """Read an archive that `docker save` (or Podman's docker-archive) wrote.

    Layers are unpacked into a directory of the caller's. Raises ContainerError.
    """
    try:
        with tarfile.open(file) as archive:
            return _read(archive, directory)
    except (OSError, tarfile.TarError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ContainerError(
            f"{file} is no image as `docker save` writes it ({error!r:.200}). Nothing was written; "
            "make the file with `docker save -o FILE IMAGE`."
        ) from error


def _read(archive: tarfile.TarFile, directory: Path) -> Image:
    listed = json.loads(_text(archive, "manifest.json"))
    [manifest] = listed if len(listed) == 1 else listed[:1]
    image = Image(json.loads(_text(archive, manifest["Config"])))
    for number, name in enumerate(manifest["Layers"]):
        source = archive.extractfile(_followed(archive, name))
        if source is None:
            raise ValueError(f"{name} is no file")
        image.layers.append(_kept(source, directory / f"base{number}"))
    if len(image.layers) != len(image.config["rootfs"]["diff_ids"]):
        raise ValueError("it does not have the layers that it names")
    return image


def _followed(archive: tarfile.TarFile, name: str) -> tarfile.TarInfo:
    """Old versions of Docker write a layer that they have twice as a link."""
    member = archive.getmember(name)
    if member.issym():
        member = archive.getmember(os.path.normpath(f"{os.path.dirname(name)}/{member.linkname}"))
    return member


def _text(archive: tarfile.TarFile, name: str) -> bytes:
    source = archive.extractfile(_followed(archive, name))
    if source is None:
        raise ValueError(f"{name} is no file")
    return source.read(_LARGEST_TEXT)


def _kept(source: Any, path: Path) -> Layer:
    with open(path, "xb") as file:
        out = _Digesting(file)
        while piece := source.read(_PIECE):
            out.write(piece)
    with open(path, "rb") as file:
        packed = file.read(2) == _GZIP
    return Layer(path, out.hexdigest, out.size, packed)


def make_layer(entries: Iterable[LayerEntry], path: Path) -> Layer:
    """Write a layer. Raises OSError, BadMember; ValueError where a file changed meanwhile."""
    with open(path, "xb") as file:
        out = _Digesting(file)
        writer = Writer(cast("BinaryIO", out))
        for entry in entries:
            writer.add(entry.member, entry.content())
        writer.finish()
    return Layer(path, out.hexdigest, out.size)


class _Digesting:
    """A file that knows the digest of what was written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        self.size += len(data)
        return self._file.write(data)

    @property
    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def write(image: Image, name: str, file: Path) -> None:
    """Write an image under a name (repository:tag) into a new file. Raises OSError."""
    config = _json(image.config)
    parts = {
        "mediaType": f"{_OCI}.manifest.v1+json",
        "schemaVersion": 2,
        "config": _descriptor(f"{_OCI}.config.v1+json", config),
        "layers": [
            {"mediaType": one.media_type, "digest": f"sha256:{one.digest}", "size": one.size}
            for one in image.layers
        ],
    }
    manifest = _json(parts)
    entry = _descriptor(f"{_OCI}.manifest.v1+json", manifest)
    named = {
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
        "io.containerd.image.name": _full(name),  # or Podman takes the tag for the name
    }
    index = {"schemaVersion": 2, "manifests": [{**entry, "annotations": named}]}
    docker = [
        {
            "Config": _place(hashlib.sha256(config).hexdigest()),
            "RepoTags": [name],
            "Layers": [_place(one.digest) for one in image.layers],
        }
    ]
    with tarfile.open(file, "x") as archive:
        for text in (config, manifest):
            _add(archive, _place(hashlib.sha256(text).hexdigest()), text)
        for digest, layer in {one.digest: one for one in image.layers}.items():
            info = tarfile.TarInfo(_place(digest))
            info.size = layer.size
            with open(layer.path, "rb") as source:
                archive.addfile(info, source)
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", _json(index))
        _add(archive, "manifest.json", _json(docker))


def _full(name: str) -> str:
    """A name as registries know it, which is how `docker save` writes it."""
    first, slash, _ = name.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("utf-8")


def _descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def _place(digest: str) -> str:
    return f"blobs/sha256/{digest}"


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
