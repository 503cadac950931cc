"""What a worker may be told, and is hardly meant: the log says it, and it holds."""

from __future__ import annotations

from collections.abc import Iterator

from feeder.worker.access import Access
from feeder.worker.config import WorkerConfig
from feeder.worker.descriptors import allowed, needed

__all__ = ["doubts"]


def doubts(config: WorkerConfig, access: Access) -> Iterator[str]:
    """A sentence for each; `access` is by the file of tokens that `config` names."""
    for option, address in config.exposed:
        yield f"{option} {address}: --insecure, so whoever reaches it can read the data"
    if (most := allowed()) < (wanted := needed(config.max_streams)):
        yield (
            f"--max-streams {config.max_streams} may take {wanted:,} open files and sockets, and this "
            f"process may have {most:,}: beyond that clients see UNAVAILABLE or DEADLINE_EXCEEDED. Raise "
            "the limit (`ulimit -Hn`, LimitNOFILE= of systemd, --ulimit nofile= of a container), or lower "
            "--max-streams"
        )
    if access.wanted and not access.entries:
        yield f"--tokens {config.tokens}: it has no entries, so nobody may read anything"
    if config.tls_client_ca is None:
        for name, entry in access.entries.items():
            if entry.certificate is not None:
                yield (
                    f"--tokens {config.tokens}: [token.{name}] lets nobody in, since clients are only asked "
                    "for a certificate with --tls-client-ca"
                )
