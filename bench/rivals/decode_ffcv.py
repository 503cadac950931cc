"""FFCV: its own file, decoder (libjpeg-turbo's fast DCT) and resize (OpenCV area), compiled by numba.

FFCV's image field encodes pixels anew, and its decoder draws windows itself. What is measured here is a field
that keeps the bytes as they are, and a decoder that differs only in taking windows and flips from a list.
"""

from __future__ import annotations

import atexit
import io
import os
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
from protocol import Batches, DecodeContestant, DecodeJob, arguments, serve


def prepare(job: DecodeJob) -> Batches:
    """FFCV's loader always has one more thread, which runs the compiled code; the core is the same."""
    from ffcv.fields.rgb_image import (
        IMAGE_MODES,
        RandomResizedCropRGBImageDecoder,
        RGBImageField,
    )
    from ffcv.libffcv import imdecode, resize_crop
    from ffcv.loader import Loader, OrderOption
    from ffcv.pipeline.compiler import Compiler
    from ffcv.writer import DatasetWriter
    from PIL import Image

    windows, flips = job.windows, job.flips

    class Untouched(RGBImageField):
        def encode(self, destination: np.ndarray, image: bytes, malloc: Callable) -> None:
            destination["mode"] = IMAGE_MODES["jpg"]
            with Image.open(io.BytesIO(image)) as file:
                destination["width"], destination["height"] = file.size
            destination["data_ptr"], storage = malloc(len(image))
            storage[:] = np.frombuffer(image, dtype=np.uint8)

    class ListedCropDecoder(RandomResizedCropRGBImageDecoder):
        def generate_code(self) -> Callable:
            read = self.memory_read
            each = Compiler.get_iterator()
            decode_image, resize = Compiler.compile(imdecode), Compiler.compile(resize_crop)

            def decode(
                batch_indices: np.ndarray, memory: tuple, metadata: np.ndarray, storage: tuple
            ) -> np.ndarray:
                destination, scratch = memory
                for slot in each(len(batch_indices)):
                    index = batch_indices[slot]
                    field = metadata[index]
                    height, width = np.uint32(field["height"]), np.uint32(field["width"])
                    full = scratch[slot]
                    decode_image(
                        read(field["data_ptr"], storage),
                        full,
                        height,
                        width,
                        height,
                        width,
                        0,
                        0,
                        1,
                        1,
                        False,
                        False,
                    )
                    pixels = full.reshape(-1)[: 3 * height * width].reshape(height, width, 3)
                    x, y, w, h = windows[index]
                    resize(pixels, y, y + h, x, x + w, destination[slot])
                    if flips[index]:
                        destination[slot] = destination[slot][:, ::-1].copy()
                return destination[: len(batch_indices)]

            decode.is_parallel = True
            return decode

    folder = tempfile.TemporaryDirectory(prefix="feeder-bench-")
    atexit.register(folder.cleanup)
    path = os.path.join(folder.name, "images.beton")
    DatasetWriter(path, {"image": Untouched()}, num_workers=1).from_indexed_dataset(
        [(image,) for image in job.images]
    )
    loader = Loader(
        path,
        batch_size=job.batch,
        num_workers=job.threads,
        os_cache=True,
        order=OrderOption.SEQUENTIAL,
        drop_last=False,
        batches_ahead=1,
        custom_fields={"image": RGBImageField},
        pipelines={"image": [ListedCropDecoder((job.size, job.size))]},
    )

    def batches() -> Iterator[np.ndarray]:
        for (images,) in loader:
            yield images

    return batches


if __name__ == "__main__":
    arguments(__doc__ or "")
    serve(
        DecodeContestant(
            prepare,
            distributions=("ffcv", "numba", "torch", "numpy"),
            note="Loader, its imdecode and resize_crop (INTER_AREA) on the untouched bytes",
            antialias=True,
        )
    )
