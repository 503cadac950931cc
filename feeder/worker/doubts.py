"""What a worker may be told, and is hardly meant: the log says it, and it holds."""

from __future__ import annotations

from collections.abc import Iterator

from feeder.worker.access import Access
from feeder.worker.config import WorkerConfig

__all__ = ["doubts"]


def doubts(config: WorkerConfig, access: Access) -> Iterator[str]:
    """A sentence for each; `access` is by the file of tokens that `config` names."""
    for option, address in config.exposed:
        yield f"{option} {address}: --insecure, so whoever reaches it can read the data"
    if access.wanted and not access.entries:
        yield f"--tokens {config.tokens}: it has no entries, so nobody may read anything"
    if config.tls_client_ca is None:
        for name, entry in access.entries.items():
            if entry.certificate is not None:
                yield (
                    f"--tokens {config.tokens}: [token.{name}] lets nobody in, since clients are only asked "
                    "for a certificate with --tls-client-ca"
                )
