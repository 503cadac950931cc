from __future__ import annotations

import numpy as np
import pytest

from feeder.decode import Limits, open_decoder, pixel_digests, pixel_fingerprint
from feeder.decode.fingerprint import probes


def test_it_names_the_decoder_and_repeats(decoder):
    found = pixel_fingerprint(decoder)
    kind, digest = found.split("-")
    assert decoder.name.startswith(kind)
    assert len(digest) == 32
    assert pixel_fingerprint(decoder) == found


def test_probes_cover_every_path():
    found = probes()
    assert {name.split(".")[1] for name in found} == {"jpg", "png", "gif"}
    kinds = {name.split(".")[0].split("_")[0] for name in found}
    assert kinds >= {"baseline", "progressive", "restart", "gray", "cmyk"}
    assert sum(map(len, found.values())) < 48 * 1024


def test_one_pixel_more_or_less_changes_it(decoder):
    class Nudged:
        name = decoder.name
        sizes = staticmethod(decoder.sizes)
        calls = 0

        def decode(self, images, windows, flips, out, **settings):
            reasons = decoder.decode(images, windows, flips, out, **settings)
            self.calls += 1
            if self.calls == 1:
                out[0, 0, 0, 0] = np.uint8(int(out[0, 0, 0, 0]) ^ 1)
            return reasons

        def close(self):
            decoder.close()

    (whole, each), (nudged, others) = pixel_digests(decoder), pixel_digests(Nudged())
    assert whole != nudged
    assert each.keys() == probes().keys()
    assert [name for name in each if each[name] != others[name]] == [next(iter(each))]


def test_a_probe_that_does_not_decode_is_an_error():
    decoder = open_decoder(1, limits=Limits(max_pixels=100))
    with pytest.raises(RuntimeError, match="built-in image"):
        pixel_fingerprint(decoder)
    decoder.close()
