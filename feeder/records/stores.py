"""Object stores: S3 and GCS by Arrow, everything else that fsspec knows by fsspec.

Credentials come from the provider's own chain (environment, profile, role), or from the URL; nothing here
shows or logs them. Trying again is not left to the libraries but to feeder.records.requests.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from feeder.errors import ConfigError
from feeder.records.index import ShardState
from feeder.records.locations import Location, redact
from feeder.records.requests import PARALLEL, Permanent

__all__ = ["OpenObject", "Store", "describe", "open_store"]

CONNECT_S = 5.0
SILENCE_S = 5.0
"""Seconds without a byte after which a connection is broken."""

_SHOWN_CHARS = 300

_AWS = re.compile(r"AWS Error (\w+)(?: \((HTTP status \d+)\))? during (\w+) operation(.*)", re.DOTALL)
_MISSING = re.compile(r"NO_SUCH_|No such file|NOT_FOUND|status 404\b")
_DENIED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT|_TOKEN\b|UNRECOGNIZED_CLIENT|PERMISSION_DENIED"
    r"|UNAUTHENTICATED|status 40[13]\b"
)
_MOVED = re.compile(r"PERMANENT_REDIRECT|status 30[17]\b")
_CUT = re.compile(r"INVALID_RANGE|OUT_OF_RANGE|past end of file|status 416\b")


class OpenObject(Protocol):
    """An object as it was when it was opened; may be read from any thread.

    Attributes:
        state: what tells it from others.
    """

    state: ShardState

    def read(self, offset: int, length: int) -> bytes:
        """So many bytes.

        Raises:
            OSError: they did not come.
        """


class Store(Protocol):
    """Where objects are. Its methods wait for an answer, once, and raise OSError where none of use comes."""

    def path(self, location: Location) -> str:
        """What the store calls a location in it."""

    def kind(self, path: str) -> Literal["object", "folder", "nothing"]:
        """What is there."""

    def walk(self, folder: str, recursive: bool) -> list[str]:
        """Paths of the objects in a folder."""

    def open(self, path: str) -> OpenObject:
        """An object, whose state is asked for."""


def describe(error: OSError) -> str:
    """What an error of a store says, in one line and without secrets.

    Raises:
        Permanent: another attempt would fail alike.
    """
    text = " ".join(redact(str(error.strerror or error)).split())
    aws = _AWS.search(text)
    code = f"{aws[2] if aws[1] == 'UNKNOWN' and aws[2] else aws[1]} in {aws[3]}" if aws else text
    if isinstance(error, FileNotFoundError) or _MISSING.search(code):
        raise Permanent("there is no such object or bucket: check the name") from None
    if isinstance(error, PermissionError) or _DENIED.search(code):
        # Without what the store says of it, in which there may be names of keys.
        why = code if aws else "HTTP status 401 or 403"
        raise Permanent(
            f"the store refuses access ({why}): check the credentials of this process (environment, profile "
            f"or role) and what they allow"
        ) from None
    if _CUT.search(code):
        raise Permanent("ends before these bytes: it shrank: restart to index it anew") from None
    if _MOVED.search(code):
        raise Permanent(f"the store says it is elsewhere ({code}): add ?region=NAME to the URL") from None
    detail = re.sub(r"\(Request ID[^)]*\)|^[: ]+|No response body\.", "", aws[4]).strip(" :") if aws else ""
    return f"{code}: {detail}"[:_SHOWN_CHARS] if detail else code[:_SHOWN_CHARS]


def open_store(location: Location) -> Store:
    """The store that a URL names.

    Raises:
        ConfigError: an option of the URL is unknown, or a package that it needs is missing.
        OSError: it cannot be reached.
    """
    key = (location.scheme, location.user, location.password, location.options, location.path.split("/")[0])
    with _LOCK:
        if key not in _STORES:
            _STORES[key] = _open(location)
        return _STORES[key]


_STORES: dict[Any, Store] = {}
_LOCK = threading.Lock()


def _open(location: Location) -> Store:
    if location.scheme == "s3":
        return _Arrow(_s3(location))
    if location.scheme in ("gs", "gcs"):
        return _Arrow(_gcs(location))
    return _Fsspec(location)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError("must be true or false")
    return text.lower() in ("true", "1")


_S3_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "region": str,
    "scheme": str,
    "endpoint_override": str,
    "anonymous": _flag,
    "role_arn": str,
    "session_name": str,
    "external_id": str,
    "force_virtual_addressing": _flag,
    "tls_ca_file_path": str,
    "tls_verify_certificates": _flag,
}
_GCS_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "scheme": str,
    "endpoint_override": str,
    "anonymous": _flag,
    "project_id": str,
    "target_service_account": str,
}


def _options(location: Location, known: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    options = {}
    for name, text in location.options:
        if name not in known:
            raise ConfigError(
                f"{location.shown}: unknown option {name!r} in the URL: there are {', '.join(known)}"
            )
        try:
            options[name] = known[name](text)
        except ValueError as error:
            raise ConfigError(f"{location.shown}: option {name!r} in the URL {error}") from None
    return options


def _s3(location: Location) -> pafs.FileSystem:
    options = _options(location, _S3_OPTIONS)
    if location.user:
        options |= {"access_key": location.user, "secret_key": location.password}
    # Arrow lets no more connections be open than this; it is a number of the whole process.
    pa.set_io_thread_count(max(pa.io_thread_count(), PARALLEL))
    if "region" not in options and "endpoint_override" not in options:
        try:
            options["region"] = pafs.resolve_s3_region(location.path.split("/")[0])
        except OSError as error:
            describe(error)  # raises where that is final; else the usual region is as good a guess as any
    try:
        return pafs.S3FileSystem(
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1),
            request_timeout=SILENCE_S,
            connect_timeout=CONNECT_S,
            **options,
        )
    except (ImportError, TypeError, ValueError) as error:  # this Arrow has no such store, or no such option
        raise ConfigError(f"{location.shown}: {redact(str(error))}") from None


def _gcs(location: Location) -> pafs.FileSystem:
    options = _options(location, _GCS_OPTIONS)
    if location.user:
        if location.user != "anonymous" or location.password:
            raise ConfigError(f"{location.shown}: of GCS only `anonymous@` may be in front of the bucket")
        options["anonymous"] = True
    try:
        return pafs.GcsFileSystem(retry_time_limit=timedelta(seconds=1), **options)
    except (ImportError, TypeError, ValueError) as error:  # this Arrow has no such store, or no such option
        raise ConfigError(f"{location.shown}: {redact(str(error))}") from None


class _Arrow:
    """A file system of Arrow's."""

    def __init__(self, fs: pafs.FileSystem) -> None:
        self._fs = fs

    def path(self, location: Location) -> str:
        return location.path

    def kind(self, path: str) -> Literal["object", "folder", "nothing"]:
        found = self._fs.get_file_info(path).type
        if found == pafs.FileType.File:
            return "object"
        return "folder" if found == pafs.FileType.Directory else "nothing"

    def walk(self, folder: str, recursive: bool) -> list[str]:
        selector = pafs.FileSelector(folder, recursive=recursive)
        return [info.path for info in self._fs.get_file_info(selector) if info.type == pafs.FileType.File]

    def open(self, path: str) -> OpenObject:
        return _ArrowObject(self._fs.open_input_file(path))


class _ArrowObject:
    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        about = file.metadata() or {}
        known = [about[key] for key in ("generation", "ETag", "etag", "Last-Modified") if key in about]
        tag = known[0] if known else b""
        self.state = ShardState(file.size(), 0, 0, 0, tag=tag.decode(errors="replace"))

    def read(self, offset: int, length: int) -> bytes:
        data: bytes = self._file.read_at(length, offset)
        return data


class _Fsspec:
    """A file system of fsspec's. Where it has timeouts they are its own; a request that hangs is given up."""

    def __init__(self, location: Location) -> None:
        try:
            import fsspec

            self._split = fsspec.core.url_to_fs
            self._options = {name: _bool(text) for name, text in location.options}
            self._fs, _ = self._split(location.address, **self._options)
        except ImportError as error:
            missing = error.name or str(error)
            raise ConfigError(
                f"{location.shown}: {location.scheme} URLs need a package that is not installed here: "
                f"pip install fsspec, and what it names for them ({missing})"
            ) from None
        except ValueError as error:
            raise ConfigError(f"{location.shown}: {redact(str(error))}") from None

    def path(self, location: Location) -> str:
        found: str = self._split(location.address, **self._options)[1]
        return found

    def kind(self, path: str) -> Literal["object", "folder", "nothing"]:
        try:
            found = _once(self._fs.info, path)["type"]
        except FileNotFoundError:
            return "nothing"
        return "folder" if found == "directory" else "object"

    def walk(self, folder: str, recursive: bool) -> list[str]:
        found: list[str] = _once(self._fs.find, folder, maxdepth=None if recursive else 1)
        return found

    def open(self, path: str) -> OpenObject:
        self._fs.invalidate_cache()  # of listings, which would say what an object was
        return _FsspecObject(self._fs, path, _once(self._fs.info, path))


class _FsspecObject:
    _TAGS = ("generation", "ETag", "etag", "version_id", "Content-MD5", "Digest", "md5Hash")
    _TIMES = ("LastModified", "Last-Modified", "last_modified", "mtime", "created")

    def __init__(self, fs: Any, path: str, about: Mapping[str, Any]) -> None:
        self._fs, self._path = fs, path
        size = about.get("size")
        if not isinstance(size, int):
            raise Permanent("the server does not say how long it is, so it cannot be read by position")
        tag = next((str(about[key]) for key in (*self._TAGS, *self._TIMES) if about.get(key)), "")
        self.state = ShardState(size, 0, 0, 0, tag=tag)

    def read(self, offset: int, length: int) -> bytes:
        data: bytes = _once(self._fs.cat_file, self._path, start=offset, end=offset + length)
        if len(data) > length:
            raise Permanent("the server sends all of it where a part was asked for: keep it in another store")
        if len(data) < length:
            raise Permanent(f"ends at byte {offset + len(data)}: it shrank: restart to index it anew")
        return data


def _bool(text: str) -> str | bool:
    return {"true": True, "false": False}.get(text.lower(), text)


def _once(call: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """Calls into fsspec; what is no OSError there, such as errors of aiohttp, becomes one."""
    try:
        return call(*arguments, **settings)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001  # each backend has errors of its own
        status = getattr(error, "status", None)
        raise OSError(f"HTTP status {status}" if status else f"{type(error).__name__}: {error}") from None
