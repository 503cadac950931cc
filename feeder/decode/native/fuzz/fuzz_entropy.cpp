// Damaged JPEGs through random windows: scan, entropy decoding, planes and resampling together. Every instruction set,
// and libjpeg alone, must give the same pixels and the same verdict.

#include <vector>

#include "fuzz_request.h"

namespace {

struct Decoders {
  std::vector<feeder_decoder *> all;

  Decoders() {
    for (const feeder_level level : {FEEDER_PLAIN, FEEDER_SSE4, FEEDER_AVX2, FEEDER_NEON}) {
      if (feeder_has_level(level) != 0) all.push_back(feeder_decoder_new(&fuzz::kLimits, level));
    }
    feeder_limits libjpeg = fuzz::kLimits;
    libjpeg.libjpeg_only = 1;
    all.push_back(feeder_decoder_new(&libjpeg, feeder_best_level()));
  }
  Decoders(const Decoders &) = delete;
  Decoders &operator=(const Decoders &) = delete;
  ~Decoders() {
    for (feeder_decoder *decoder : all) feeder_decoder_free(decoder);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const Decoders decoders;
  const fuzz::Input input(data, size);
  feeder_header header = {};
  const bool readable = feeder_read_header(input.image.data(), input.image.size(), &fuzz::kLimits, &header) == FEEDER_OK;
  const int width = readable ? header.width : 64, height = readable ? header.height : 64;
  feeder_request request = fuzz::choose_request(input, width, height);
  const bool inside = request.x + request.width <= width && request.y + request.height <= height;
  fuzz::Bytes first;
  feeder_status verdict = FEEDER_OK;
  for (size_t level = 0; level < decoders.all.size(); ++level) {
    // Exactly as large as promised, on the heap, so that a byte too many is found.
    fuzz::Bytes pixels(fuzz::bytes_of_out(request), static_cast<uint8_t>(level));
    char reason[FEEDER_REASON_BYTES];
    request.out = pixels.data();
    const feeder_status status = feeder_decode(decoders.all[level], &request, reason);
    if (status == FEEDER_DAMAGED && reason[0] == '\0') fuzz::finding("damaged without a reason");
    if (status == FEEDER_NO_MEMORY) fuzz::finding("out of memory");
    if (readable && (status == FEEDER_OUTSIDE) == inside) fuzz::finding("wrong about the window");
    if (!readable && status != FEEDER_OTHER) fuzz::finding("decoded without a header");
    if (level == 0) {
      verdict = status;
      first.swap(pixels);
    } else if (status != verdict) {
      fuzz::finding("decoders differ in their verdict");
    } else if (status == FEEDER_OK && pixels != first) {
      fuzz::finding("decoders differ in their pixels");
    }
  }
  return 0;
}
