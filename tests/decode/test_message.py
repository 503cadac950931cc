from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from feeder.decode.message import MessageBuffer, PortableMessageBuffer

TWINS = sorted({PortableMessageBuffer, MessageBuffer}, key=lambda twin: twin.__name__)


@pytest.fixture(params=TWINS, ids=lambda twin: twin.__module__)
def twin(request):
    return request.param


def test_what_is_written_is_what_comes_out(twin):
    buffer = twin(300)
    assert len(buffer) == 300
    view = np.frombuffer(buffer, np.uint8)
    assert view.shape == (300,)
    view[:] = np.arange(300) % 256
    del view
    content = buffer.finish()
    assert type(content) is bytes
    assert content == bytes(index % 256 for index in range(300))
    assert hash(content) == hash(bytes(content))


def test_no_bytes_while_a_view_is_alive(twin):
    buffer = twin(4)
    first = memoryview(buffer)
    second = np.frombuffer(buffer, np.uint8)
    with pytest.raises(BufferError):
        buffer.finish()
    first.release()
    with pytest.raises(BufferError):
        buffer.finish()
    second[:] = 7
    del second
    assert buffer.finish() == b"\x07" * 4


def test_unusable_after_finish(twin):
    buffer = twin(3)
    memoryview(buffer)[:] = b"abc"
    assert buffer.finish() == b"abc"
    with pytest.raises(BufferError, match="finished"):
        buffer.finish()
    assert len(buffer) == 0
    if twin is PortableMessageBuffer:
        assert memoryview(buffer).nbytes == 0
    else:
        with pytest.raises(BufferError, match="finished"):
            memoryview(buffer)


def test_a_buffer_without_a_size_gives_nothing():
    pytest.importorskip("feeder.decode._kernel")
    with pytest.raises(BufferError, match="no size"):
        memoryview(MessageBuffer.__new__(MessageBuffer))


def test_a_view_keeps_the_buffer_alive(twin):
    view = memoryview(twin(1 << 16))
    gc.collect()
    view[:] = bytes(1 << 16)
    assert view[-1] == 0


def test_size_zero_and_less(twin):
    assert twin(0).finish() == b""
    with pytest.raises(ValueError, match="negative"):
        twin(-1)


def test_the_content_outlives_the_buffer(twin):
    buffer = twin(1 << 16)
    memoryview(buffer)[:] = b"x" * (1 << 16)
    content = buffer.finish()
    if hasattr(buffer, "__weakref__"):
        gone = weakref.ref(buffer)
        del buffer
        assert gone() is None
    assert content == b"x" * (1 << 16)
