// Damaged JPEGs through random windows: scan, entropy decoding and planes. Every instruction set, and libjpeg alone, must
// give the same verdict, the same samples of each plane and the same pixels, straight from the file and from the planes.

#include <cstdlib>
#include <cstring>
#include <vector>

#include "fuzz_request.h"

namespace {

using fuzz::Bytes;
using fuzz::finding;

struct Decoders {
  std::vector<feeder_decoder *> all;

  Decoders() {
    for (const feeder_level level : {FEEDER_PLAIN, FEEDER_SSE4, FEEDER_AVX2, FEEDER_AVX512, FEEDER_NEON}) {
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

struct Result {
  feeder_status status = FEEDER_OK;
  feeder_planes planes = {};
  Bytes pixels;

  Result() = default;
  Result(const Result &) = delete;
  Result &operator=(const Result &) = delete;
  ~Result() { std::free(planes.samples[0]); }
};

void decode(feeder_decoder *decoder, feeder_request request, Result *result) {
  char reason[FEEDER_REASON_BYTES];
  result->status = feeder_decode(decoder, &request, reason);
  if (result->status == FEEDER_DAMAGED && reason[0] == '\0') finding("damaged without a reason");
  if (result->status == FEEDER_NO_MEMORY) finding("out of memory");
}

void decode_planes(feeder_decoder *decoder, feeder_request request, Result *result) {
  request.keep = &result->planes;
  decode(decoder, request, result);
}

void decode_pixels(feeder_decoder *decoder, feeder_request request, Result *result) {
  // Exactly as large as promised, on the heap, so that a byte too many is found.
  result->pixels.assign(fuzz::bytes_of_out(request), uint8_t{1});
  request.out = result->pixels.data();
  decode(decoder, request, result);
}

size_t samples_of(const feeder_planes &planes) {
  size_t samples = 0;
  for (int i = 0; i < planes.layout.components; ++i) {
    const auto &plane = planes.layout.plane[i];
    samples += static_cast<size_t>(plane.right - plane.left) * static_cast<size_t>(plane.bottom - plane.top);
  }
  return samples;
}

bool same(const feeder_planes &a, const feeder_planes &b) {
  return std::memcmp(&a.layout, &b.layout, sizeof a.layout) == 0 &&
         std::memcmp(a.samples[0], b.samples[0], samples_of(a)) == 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const Decoders decoders;
  const fuzz::Input input(data, size);
  feeder_header header = {};
  const bool readable = feeder_read_header(input.image.data(), input.image.size(), &fuzz::kLimits, &header) == FEEDER_OK;
  const int width = readable ? header.width : 64, height = readable ? header.height : 64;
  const feeder_request request = fuzz::choose_request(input, width, height);
  const bool inside = request.x + request.width <= width && request.y + request.height <= height;

  Result first;
  decode_planes(decoders.all.front(), request, &first);
  if (readable && (first.status == FEEDER_OUTSIDE) == inside) finding("wrong about the window");
  if (!readable && first.status != FEEDER_OTHER) finding("decoded without a header");
  for (size_t i = 1; i < decoders.all.size(); ++i) {
    Result other;
    decode_planes(decoders.all[i], request, &other);
    if (other.status != first.status) finding("decoders differ in their verdict");
    if (first.status == FEEDER_OK && !same(other.planes, first.planes)) finding("decoders differ in their planes");
  }

  // All levels of the resampler are fuzz_resample's.
  feeder_decoder *const decoder = decoders.all[input.choices[9] % decoders.all.size()];
  Result direct, indirect;
  decode_pixels(decoder, request, &direct);
  if (direct.status != first.status) finding("planes and pixels differ in their verdict");
  if (first.status != FEEDER_OK) return 0;
  feeder_request stored = request;
  stored.data = nullptr;
  stored.planes = &first.planes;
  decode_pixels(decoder, stored, &indirect);
  if (indirect.status != FEEDER_OK || indirect.pixels != direct.pixels) finding("planes give other pixels");
  return 0;
}
