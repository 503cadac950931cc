"""The batches of a stream while they are put together: where a chunk goes, and what its bytes cost."""

from __future__ import annotations

from feeder.client.batch import Assembly, Landing
from feeder.client.buffers import Write
from feeder.client.session import Piece, Request
from feeder.client.sharing import Sharing
from feeder.errors import ProtocolError
from feeder.wire.messages import Chunk

__all__ = ["Making"]


class Making:
    """The batches of one stream that are asked for and not released. All is called with the lock held.

    Args:
        slots: of every global step that belong to this consumer.
        image_bytes: of one image's pixels.
        sharing: where the batches' memory comes from.

    Attributes:
        received_bytes: of chunk messages' pixels, as they came.
        saved_bytes: of pixels that need not come, thanks to compression.
        copied_bytes: from connections into batches, and from batch to batch.
    """

    def __init__(self, slots: range, image_bytes: int, sharing: Sharing) -> None:
        self.received_bytes = 0
        self.saved_bytes = 0
        self.copied_bytes = 0
        self._slots = slots
        self._image_bytes = image_bytes
        self._sharing = sharing
        self._assemblies: dict[int, Assembly] = {}

    def destination(self, request: Request) -> tuple[int, int] | None:
        """Where a worker shall write the answer; None: it shall send it."""
        assembly = self._assemblies.get(request.step.number)
        if assembly is None:
            images, buffer = self._sharing.images()
            assembly = self._assemblies[request.step.number] = Assembly(self._slots, images, buffer)
        slot = request.slots[0]
        if slot in assembly.landing:  # half of it is here, by another worker
            return None
        if not self._sharing.asks(request.id, request.worker, assembly.buffer, slot):
            return None
        assert assembly.buffer is not None
        return assembly.buffer, (slot - self._slots.start) * self._image_bytes

    def ready(self, number: int) -> Assembly:
        """Batch `number`, all of which is here; nothing writes there any more."""
        assembly = self._assemblies[number]
        if assembly.landing:
            self.copied_bytes += assembly.leave()
        return assembly

    def drop(self, number: int) -> None:
        """Batch `number` will not be asked for again."""
        self._assemblies.pop(number, None)

    def clear(self) -> None:
        """No batch will."""
        self._assemblies.clear()

    # Chunks.

    def arriving(self, name: str, chunk: Chunk, piece: Piece | None) -> Landing | None:
        """Where the pixels of a chunk go that begins to arrive; None where nobody wants them any more (no
        `piece`). Each landing must be ended, by `landed` or by `given_up`.

        Raises:
            ProtocolError: it is not what was asked for.
        """
        self.received_bytes += chunk.pixel_bytes
        self.copied_bytes += chunk.pixel_bytes
        if piece is None:
            return None
        assembly = self._of(name, chunk, piece)
        slot = piece.slots[0]
        if self._sharing.written(assembly.buffer, slot):
            self.copied_bytes += assembly.leave()  # a worker that was late with it may still write there
        assembly.landing.append(slot)
        return Landing(assembly, slot, assembly.images, assembly.places(piece.slots))

    def landed(self, chunk: Chunk, piece: Piece | None, landing: Landing) -> None:
        """All pixels of a chunk are in their places."""
        landing.assembly.landing.remove(landing.slot)
        self.saved_bytes += sum(map(len, landing.places)) - chunk.pixel_bytes
        if piece is not None:
            if landing.images is not landing.assembly.images:
                self.copied_bytes += landing.assembly.copy(piece.slots, landing.images)
            landing.assembly.note(piece.slots, chunk)

    def given_up(self, landing: Landing) -> None:
        """The rest of a chunk will not come."""
        landing.assembly.landing.remove(landing.slot)

    def placed(self, name: str, chunk: Chunk, piece: Piece, write: Write | None) -> None:
        """A worker wrote a chunk where it was asked to.

        Raises:
            ProtocolError: it was not asked to, or it is not what was asked for.
        """
        if write is None:
            raise ProtocolError(f"worker {name}: chunk {chunk.id} is in no place that it was given")
        assembly = self._of(name, chunk, piece)
        if assembly.buffer != write.buffer:
            self.copied_bytes += assembly.copy(piece.slots, self._sharing.view(write.buffer))
        assembly.note(piece.slots, chunk)

    def _of(self, name: str, chunk: Chunk, piece: Piece) -> Assembly:
        assembly = self._assemblies[piece.step.number]
        mismatch = assembly.mismatch(piece.slots, chunk)
        if mismatch is not None:
            raise ProtocolError(f"worker {name}: {mismatch}")
        return assembly
