// Decodes with libjpeg-turbo what baseline.h leaves to it: progressive and arithmetic coding, reduced scales, odd sampling,
// and whatever looks damaged.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg_crop.h"
#include "scratch.h"
#include "sink.h"

namespace feeder {

class LibjpegDecoder {
 public:
  // max_pixels bounds the memory for coefficients.
  explicit LibjpegDecoder(uint64_t max_pixels) : max_pixels_(max_pixels) {}

  // Decodes what a window of the image at 1/reduction needs into the sink; without a sink, all of the image for nothing
  // but the verdict. header is that of the data; reason has FEEDER_REASON_BYTES bytes.
  feeder_status decode(const uint8_t *data, size_t size, const feeder_header &header, int reduction,
                       const Window &window, PlaneSink *sink, char *reason) noexcept;

 private:
  const uint64_t max_pixels_;
  Scratch rows_;  // that libjpeg decodes at a time
};

}  // namespace feeder
