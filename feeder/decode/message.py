"""A `bytes` object under construction: the kernel writes pixels where they will be sent from."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["MessageBuffer", "PortableMessageBuffer"]


class PortableMessageBuffer(bytearray):
    """A writable buffer of fixed size that becomes `bytes` once; this one copies to do so.

    Exports (`memoryview(buffer)`, `numpy.frombuffer(buffer, numpy.uint8)`) are writable. The content is zero
    at first here, and undefined in the native twin.

    Args:
        size: length in bytes.
    """

    def __init__(self, size: int) -> None:
        if size < 0:
            raise ValueError(f"size must not be negative, got {size}")
        super().__init__(size)
        self._finished = False

    def finish(self) -> bytes:
        """Returns the content; the buffer is unusable after.

        Raises:
            BufferError: an export is still alive, or finish() was called before.
        """
        if self._finished:
            raise BufferError("this message is finished already")
        content = bytes(self)
        self.clear()  # raises BufferError while exports are alive
        self._finished = True
        return content


if TYPE_CHECKING:
    MessageBuffer = PortableMessageBuffer
else:
    try:
        from feeder.decode._kernel import MessageBuffer
    except ImportError:
        MessageBuffer = PortableMessageBuffer
