"""Why a worker cannot be spoken to, where TLS may be the reason: gRPC only says that it cannot."""

from __future__ import annotations

import contextlib
import os
import ssl
from datetime import UTC, datetime
from pathlib import Path

from feeder.errors import ConfigError, FeederError, NotTrusted
from feeder.wire.address import Address
from feeder.wire.channel import dial
from feeder.wire.credentials import Credentials
from feeder.wire.tls import SYSTEM, check_dates, shake

__all__ = ["diagnose"]

ANSWER_S = 2.0
"""For a worker to say that it does not take our certificate, which TLS 1.3 lets it do after the handshake."""

_NOT_YET, _EXPIRED = 9, 10
_NAMES = (62, 64)
"""Numbers of X509_verify_cert_error_string(3): host, address."""

_PLAIN = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")


def diagnose(address: Address, credentials: Credentials) -> FeederError | None:
    """Makes one connection of its own to the worker; None where TLS is not what keeps the two apart."""
    where = f"worker {address}"
    if address.kind == "unix":
        return None
    try:
        if credentials.tls_cert is not None:
            reason = check_dates(Path(os.fspath(credentials.tls_cert)), datetime.now(UTC))
            if reason:
                return NotTrusted(f"{where}: the client's certificate {reason}")
        context = credentials.context()
        if context is None:
            return _speaks_tls(address, where)
    except ConfigError as error:
        return error
    try:
        connection = dial(address)
    except OSError:
        return None  # nobody is there
    try:
        with shake(connection, context, address) as secure:
            secure.settimeout(ANSWER_S)
            with contextlib.suppress(TimeoutError):
                secure.recv(1)  # its first frame
    except ssl.SSLCertVerificationError as error:
        return NotTrusted(f"{where}: {_distrust(error, address, credentials)}")
    except ssl.SSLError as error:
        return NotTrusted(f"{where}: {_failure(error, credentials)}")
    except OSError:
        return None
    return None


def _speaks_tls(address: Address, where: str) -> FeederError | None:
    """Whether it is TLS that a client without misses."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with shake(dial(address), context, address):
            pass
    except ssl.SSLError as error:
        if "ALERT" not in str(error.reason):
            return None
    except OSError:
        return None
    return NotTrusted(
        f"{where} speaks TLS, and this client was not told to: name the authority of the worker's "
        "certificate with --tls-ca, FEEDER_TLS_CA or feeder.Credentials(tls_ca=...)"
    )


def _distrust(error: ssl.SSLCertVerificationError, address: Address, credentials: Credentials) -> str:
    """Why its certificate is not taken."""
    if error.verify_code == _EXPIRED:
        return "the worker's certificate has expired: put a new one there and send the worker SIGHUP"
    if error.verify_code == _NOT_YET:
        return "the worker's certificate is not valid yet: look at the clocks of both hosts"
    if error.verify_code in _NAMES:
        name = address.name or address.host
        return (
            f"the worker's certificate is not for {name!r} ({error.verify_message}): dial a name that is in "
            "it, or make one with this name as subjectAltName"
        )
    trusted = "that this system trusts" if credentials.tls_ca == SYSTEM else f"in {credentials.tls_ca}"
    return (
        f"the worker's certificate is of no authority {trusted} ({error.verify_message}): name the file of "
        "the one that it is of with --tls-ca"
    )


def _failure(error: ssl.SSLError, credentials: Credentials) -> str:
    reason = error.reason or str(error)
    if reason in _PLAIN:
        return (
            "it speaks no TLS: leave out --tls-ca (FEEDER_TLS_CA), or start the worker with --tls-cert and "
            "--tls-key"
        )
    if "ALERT" in reason and ("CERTIFICATE" in reason or "CA" in reason or "HANDSHAKE_FAILURE" in reason):
        if credentials.tls_cert is None:
            return (
                "it wants a certificate of this client: name its file with --tls-cert and --tls-key, or "
                "feeder.Credentials(tls_cert=..., tls_key=...)"
            )
        return (
            f"it does not take the certificate {credentials.tls_cert} ({reason}): it must be of an authority "
            "in the worker's --tls-client-ca"
        )
    return f"the handshake failed ({reason})"
