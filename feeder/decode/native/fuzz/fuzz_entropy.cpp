// Damaged JPEGs through random windows: scan, entropy decoding, planes and resampling together. Every instruction set,
// and libjpeg alone, must give the same pixels and the same verdict.

#include <algorithm>
#include <vector>

#include "fuzz_input.h"
#include "jpeg_crop.h"

namespace {

// Small, so that a mutated header costs little time.
constexpr feeder_limits kLimits = {1 << 20, 1 << 18, 20, 2 << 20, 0};

struct Decoders {
  std::vector<feeder_decoder *> all;

  Decoders() {
    for (int level = FEEDER_PLAIN; level <= feeder_best_level(); ++level) {
      all.push_back(feeder_decoder_new(&kLimits, static_cast<feeder_level>(level)));
    }
    feeder_limits libjpeg = kLimits;
    libjpeg.libjpeg_only = 1;
    all.push_back(feeder_decoder_new(&libjpeg, feeder_best_level()));
  }
  Decoders(const Decoders &) = delete;
  Decoders &operator=(const Decoders &) = delete;
  ~Decoders() {
    for (feeder_decoder *decoder : all) feeder_decoder_free(decoder);
  }
};

// Sometimes outside of the image.
feeder_request choose(const fuzz::Input &input, int width, int height) {
  const uint8_t *choices = input.choices;
  feeder_request request = {};
  request.data = input.image.data();
  request.size = input.image.size();
  request.x = choices[0] * (width + 1) / 256;
  request.y = choices[1] * (height + 1) / 256;
  request.width = 1 + choices[2] * std::max(1, width - request.x) / 256 + (choices[8] == 1 ? 1 : 0);
  request.height = 1 + choices[3] * std::max(1, height - request.y) / 256 + (choices[8] == 2 ? 1 : 0);
  request.out_width = 1 + choices[4] % 96;
  request.out_height = 1 + choices[5] % 96;
  request.reduction = 1 << (choices[6] % 8 < 4 ? 0 : choices[6] % 4);
  request.flip = choices[7] & 1;
  request.filter = (choices[7] & 2) != 0 ? FEEDER_BICUBIC : FEEDER_BILINEAR;
  request.antialias = (choices[7] & 12) != 0 ? 1 : 0;
  return request;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const Decoders decoders;
  const fuzz::Input input(data, size);
  feeder_header header = {};
  const bool readable = feeder_read_header(input.image.data(), input.image.size(), &kLimits, &header) == FEEDER_OK;
  const int width = readable ? header.width : 64, height = readable ? header.height : 64;
  feeder_request request = choose(input, width, height);
  const bool inside = request.x + request.width <= width && request.y + request.height <= height;
  const size_t bytes = static_cast<size_t>(request.out_width) * static_cast<size_t>(request.out_height) * 3;
  fuzz::Bytes first;
  feeder_status verdict = FEEDER_OK;
  for (size_t level = 0; level < decoders.all.size(); ++level) {
    // Exactly as large as promised, on the heap, so that a byte too many is found.
    fuzz::Bytes pixels(bytes, static_cast<uint8_t>(level));
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
