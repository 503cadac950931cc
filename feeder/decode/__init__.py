"""From encoded bytes to pixels: decode only what a window needs, resize, flip, straight into the batch."""

from feeder.decode.decoder import Decoder, Kind, decode_crop, decode_crop_batch, open_decoder
from feeder.decode.fingerprint import pixel_digests, pixel_fingerprint
from feeder.decode.header import Limits
from feeder.decode.message import MessageBuffer
from feeder.decode.reduce import reductions
from feeder.decode.seek import GREW, REFUSED, SEEK_BYTES, USED, SeekPoints

__all__ = [
    "GREW",
    "REFUSED",
    "SEEK_BYTES",
    "USED",
    "Decoder",
    "Kind",
    "Limits",
    "MessageBuffer",
    "SeekPoints",
    "decode_crop",
    "decode_crop_batch",
    "open_decoder",
    "pixel_digests",
    "pixel_fingerprint",
    "reductions",
]
