"""Where objects are: URLs, what of them may be shown, and which objects a pattern names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from feeder.errors import ConfigError

__all__ = ["Location", "folder_of", "is_glob", "is_url", "matcher", "redact"]

# A secret with a slash that should have been %2F is one, too.
_USER = re.compile(r"(?<=://)[^/\s@'\"]*(?::[^\s@'\"]*)?@")
_QUERY = re.compile(r"(\b[a-zA-Z][\w+.-]*://[^\s?'\"]*)\?[^\s'\"]*")
_MAGIC = re.compile(r"[*\[]")


def is_url(pattern: str) -> bool:
    """Whether a pattern names objects in a store and not files."""
    return "://" in pattern


def redact(text: str) -> str:
    """A text with what may be secret in its URLs taken out: user, password, and query."""
    return _QUERY.sub(r"\1", _USER.sub("", text))


@dataclass(frozen=True)
class Location:
    """A URL, taken apart. Only `shown` may be seen by anybody.

    Attributes:
        scheme: such as "s3".
        path: bucket and key, or host and path, without a slash at its end; may be a pattern.
        folder: whether the URL ends in a slash.
        user, password: in front of the bucket, or "".
        options: what the query says; empty for http, where it belongs to the address.
        url: the whole, as it came.
    """

    scheme: str
    path: str
    folder: bool
    user: str = field(repr=False)
    password: str = field(repr=False)
    options: tuple[tuple[str, str], ...] = field(repr=False)
    url: str = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> Location:
        """Takes a URL apart.

        Raises:
            ConfigError: it names no bucket, host or folder.
        """
        split = urlsplit(url.replace("#", "%23"))  # a key may hold one
        user, at, place = split.netloc.rpartition("@")
        name, _, password = user.partition(":")
        path = unquote(place + split.path) if split.scheme in ("s3", "gs", "gcs") else place + split.path
        if not path.strip("/") or (split.scheme == "s3" and ":" in place):
            raise ConfigError(
                f"{redact(url)}: names no bucket, as in s3://bucket/key; a / in a secret must be written %2F"
            )
        try:
            is_http = split.scheme in ("http", "https")
            options = () if is_http else tuple(parse_qsl(split.query, True, True))
        except ValueError:
            raise ConfigError(f"{redact(url)}: what follows the ? must be NAME=VALUE&NAME=VALUE") from None
        return cls(
            split.scheme.lower(),
            path.replace("%23", "#").rstrip("/"),
            path.endswith("/"),
            unquote(name),
            unquote(password) if at else "",
            options,
            url,
        )

    @property
    def address(self) -> str:
        """The URL without options."""
        return self.url.partition("?")[0] if self.options else self.url

    @property
    def shown(self) -> str:
        """The URL without user, password and query."""
        return f"{self.scheme}://{self.path}"


def is_glob(path: str) -> bool:
    """Whether a path is a pattern of several."""
    return _MAGIC.search(path) is not None


def folder_of(glob: str) -> str:
    """The folder above everything that a pattern can match."""
    return _MAGIC.split(glob, maxsplit=1)[0].rpartition("/")[0]


def matcher(pattern: str) -> re.Pattern[str]:
    """A glob over paths: `*` and `[...]` stay within a folder, `**/` is any number of folders."""
    out = []
    for part in re.split(r"(\*\*/|\*|\[!?\]?[^\]/]*\])", pattern):
        if part == "**/":
            out.append("(?:[^/]+/)*")
        elif part == "*":
            out.append("[^/]*")
        elif part.startswith("[") and part.endswith("]") and len(part) > 2:
            body = part[1:-1].replace("\\", "\\\\")
            out.append(f"[{'^' + body[1:] if body.startswith('!') else body}]")
        else:
            out.append(re.escape(part))
    return re.compile("".join(out))
