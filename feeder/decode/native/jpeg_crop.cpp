// Which way a request takes. The plain baseline file goes through baseline.h, and all else, and what is damaged, through
// libjpeg-turbo; both give planes to the same sink, so that the pixels are the same.

#include "jpeg_crop.h"

#include <initializer_list>
#include <new>

#include "baseline.h"
#include "libjpeg_decoder.h"
#include "resample.h"
#include "scratch.h"
#include "sink.h"
#include "stored_planes.h"

namespace {

// For requests that stop before there are pixels.
class Discard : public feeder::PlaneSink {
 public:
  bool begin(const feeder::PlaneLayout &) noexcept override { return true; }
  void push(int, const uint8_t *) noexcept override {}
};

// Pixels of the image at its scale that the request's window touches.
feeder::Window window_of(const feeder_request &request) {
  const int r = request.reduction;
  return {request.x / r, request.y / r, (request.x + request.width + r - 1) / r,
          (request.y + request.height + r - 1) / r};
}

feeder::Geometry geometry_of(const feeder_request &request) {
  const double r = request.reduction;  // a power of two: what follows is exact
  return {window_of(request),
          request.x / r,
          request.y / r,
          request.width / r,
          request.height / r,
          request.out_width,
          request.out_height,
          request.filter,
          request.antialias != 0,
          request.flip != 0,
          request.output,
          request.out};
}

}  // namespace

struct feeder_decoder {
  feeder_decoder(const feeder_limits &bounds, const feeder::Level &level, const feeder::Planes &planes)
      : limits(bounds), resampler(level), baseline(planes), libjpeg(bounds.max_pixels) {}

  feeder_limits limits;
  feeder::Resampler resampler;
  feeder::BaselineDecoder baseline;
  feeder::LibjpegDecoder libjpeg;
  feeder::Scratch row;  // of stored planes
};

namespace {

// Carries out a request without libjpeg, where that is possible.
feeder::Baseline decode_baseline(feeder_decoder *decoder, const feeder_request &request, const feeder_header &header,
                                 feeder::PlaneSink *sink) {
  feeder::Seek seek = {request.seek, false, false, false};
  const feeder::Baseline result =
      request.stop == FEEDER_LEARN
          ? decoder->baseline.learn(request.data, request.size, &seek)
          : decoder->baseline.decode(request.data, request.size, header, window_of(request),
                                     request.stop == FEEDER_ENTROPY ? nullptr : sink, &seek);
  if (request.seek_outcome != nullptr) {
    *request.seek_outcome = static_cast<uint8_t>((seek.used ? FEEDER_SEEK_USED : 0) | (seek.grew ? FEEDER_SEEK_GREW : 0) |
                                                 (seek.refused ? FEEDER_SEEK_REFUSED : 0));
  }
  return result;
}

feeder_status decode_into(feeder_decoder *decoder, const feeder_request &request, const feeder_header &header,
                          feeder::PlaneSink *sink, char *reason) {
  const bool all = request.stop == FEEDER_LEARN;
  if (header.one_scan && (all || request.reduction == 1) && !decoder->limits.libjpeg_only) {
    const feeder::Baseline result = decode_baseline(decoder, request, header, sink);
    if (result == feeder::Baseline::kDone) return FEEDER_OK;
    if (result == feeder::Baseline::kNoMemory) return FEEDER_NO_MEMORY;
  }
  // Whether all of it is sound shows at any scale.
  if (all) return decoder->libjpeg.decode(request.data, request.size, header, 8, {}, nullptr, reason);
  return decoder->libjpeg.decode(request.data, request.size, header, request.reduction, window_of(request), sink,
                                 reason);
}

}  // namespace

extern "C" {

feeder_level feeder_best_level(void) {
  for (const feeder_level level : {FEEDER_NEON, FEEDER_AVX512, FEEDER_AVX2, FEEDER_SSE4}) {
    if (feeder_has_level(level) != 0) return level;
  }
  return FEEDER_PLAIN;
}

int32_t feeder_has_level(feeder_level level) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (level == FEEDER_AVX512) {
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512vbmi")
               ? 1
               : 0;
  }
  if (level == FEEDER_AVX2) return __builtin_cpu_supports("avx2") ? 1 : 0;
  if (level == FEEDER_SSE4) return __builtin_cpu_supports("sse4.1") ? 1 : 0;
#elif defined(__aarch64__)
  if (level == FEEDER_NEON) return 1;
#endif
  return level == FEEDER_PLAIN ? 1 : 0;
}

const char *feeder_level_name(feeder_level level) {
  constexpr const char *kNames[] = {"plain", "sse4", "avx2", "avx512", "neon"};
  return kNames[level];
}

feeder_decoder *feeder_decoder_new(const feeder_limits *limits, feeder_level level) {
  if (feeder_has_level(level) == 0) return nullptr;
  const feeder::Level *loops = &feeder::kPlainLevel;
  const feeder::Planes *planes = &feeder::kPlainPlanes;
#if defined(__x86_64__)
  if (level == FEEDER_SSE4) {
    loops = &feeder::kSse4Level;
    planes = &feeder::kSse4Planes;
  }
  if (level == FEEDER_AVX2) {
    loops = &feeder::kAvx2Level;
    planes = &feeder::kAvx2Planes;
  }
  if (level == FEEDER_AVX512) {
    loops = &feeder::kAvx512Level;
    planes = &feeder::kAvx2Planes;  // a block of the inverse DCT fills no more
  }
#elif defined(__aarch64__)
  if (level == FEEDER_NEON) {
    loops = &feeder::kNeonLevel;
    planes = &feeder::kNeonPlanes;
  }
#endif
  return new (std::nothrow) feeder_decoder(*limits, *loops, *planes);
}

void feeder_decoder_free(feeder_decoder *decoder) { delete decoder; }

feeder_status feeder_decode(feeder_decoder *decoder, const feeder_request *request, char *reason) {
  reason[0] = '\0';
  if (request->seek_outcome != nullptr) *request->seek_outcome = 0;
  if (request->planes != nullptr) {
    constexpr int32_t kMaxSide = 65535;  // of any image; sums of what is larger may not fit
    if (request->x > kMaxSide - request->width || request->y > kMaxSide - request->height) return FEEDER_OUTSIDE;
    decoder->resampler.aim(geometry_of(*request));
    return feeder::push_stored(*request->planes, window_of(*request), &decoder->row, &decoder->resampler);
  }
  feeder_header header;
  const feeder_status readable = feeder_read_header(request->data, request->size, &decoder->limits, &header);
  if (readable != FEEDER_OK) return readable;
  if (request->stop != FEEDER_LEARN &&
      (request->x > header.width - request->width || request->y > header.height - request->height)) {
    return FEEDER_OUTSIDE;
  }
  if (request->keep != nullptr) {
    feeder::PlaneStore store(request->keep);
    return decode_into(decoder, *request, header, &store, reason);
  }
  if (request->stop == FEEDER_PIXELS) {
    decoder->resampler.aim(geometry_of(*request));
    return decode_into(decoder, *request, header, &decoder->resampler, reason);
  }
  Discard discard;
  return decode_into(decoder, *request, header, &discard, reason);
}

}  // extern "C"
