"""What a client shows a worker, and whom it trusts."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from feeder.errors import ConfigError
from feeder.wire.tls import SYSTEM, client_context

__all__ = ["VARIABLES", "Credentials"]

MAX_TOKEN_BYTES = 4096

VARIABLES = {
    "tls_ca": "FEEDER_TLS_CA",
    "tls_cert": "FEEDER_CLIENT_CERT",
    "tls_key": "FEEDER_CLIENT_KEY",
    "token_file": "FEEDER_TOKEN_FILE",
}
"""Of the environment, for each field; FEEDER_TLS_CERT and FEEDER_TLS_KEY are a worker's, who may share it."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Names of files, which are read for each connection anew: what rotates in them needs no restart.

    Attributes:
        tls_ca: authorities in PEM that a worker's certificate must be of, or "system" for those that this
            system trusts. None: no TLS. A unix socket never has TLS.
        tls_cert: this client's certificate in PEM, for workers that want one.
        tls_key: its key in PEM, without a passphrase; None: it is in the file of the certificate.
        token_file: holds the token that `feeder token new` made.
    """

    tls_ca: str | os.PathLike[str] | None = None
    tls_cert: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = None
    token_file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.tls_ca is None and self.tls_cert is not None:
            raise ConfigError(
                f"a client's certificate ({self.tls_cert}) needs --tls-ca, FEEDER_TLS_CA or tls_ca, "
                "the authority that it trusts"
            )
        if self.tls_cert is None and self.tls_key is not None:
            raise ConfigError(
                f"a key ({self.tls_key}) needs --tls-cert, FEEDER_CLIENT_CERT or tls_cert, the certificate "
                "that it is of"
            )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, **said: str) -> Credentials:
        """What the environment says, by the names of VARIABLES, where `said` does not say it.

        Raises:
            ConfigError: a certificate is named without authorities, or a key without a certificate.
        """
        return cls(**{field: said.get(field, environ.get(name)) or None for field, name in VARIABLES.items()})

    def context(self) -> ssl.SSLContext | None:
        """For a handshake; None: without TLS.

        Raises:
            ConfigError: a file cannot be used.
        """
        if self.tls_ca is None:
            return None
        return client_context(os.fspath(self.tls_ca), _text(self.tls_cert), _text(self.tls_key))

    def channel(self) -> grpc.ChannelCredentials | None:
        """The same for gRPC.

        Raises:
            ConfigError: a file cannot be used.
        """
        if self.context() is None:  # which says what is wrong with the files, as gRPC does not
            return None
        ca, cert, key = (_bytes(path) for path in (self.tls_ca, self.tls_cert, self.tls_key or self.tls_cert))
        if self.tls_ca == SYSTEM:
            found = ssl.get_default_verify_paths().cafile
            ca = _bytes(found) if found else None
        return grpc.ssl_channel_credentials(ca, key, cert)

    def authorization(self) -> str | None:
        """The value of the header of that name; None: no token.

        Raises:
            ConfigError: the file cannot be used.
        """
        if self.token_file is None:
            return None
        try:
            with open(self.token_file, "rb") as file:
                token = file.read(MAX_TOKEN_BYTES + 1).strip()
        except OSError as error:
            raise ConfigError(f"{self.token_file}: cannot read the token: {error.strerror}") from None
        if not token or len(token) > MAX_TOKEN_BYTES or not all(0x21 <= byte <= 0x7E for byte in token):
            raise ConfigError(f"{self.token_file}: holds no token, which is one word of letters and digits")
        return f"Bearer {token.decode()}"


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


def _bytes(path: str | os.PathLike[str] | None) -> bytes | None:
    return None if path is None or path == SYSTEM else Path(path).read_bytes()
