// What each output of a resampled axis is made of. Pure functions, without vectors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg_crop.h"
#include "sink.h"

namespace feeder {

// One output: `count` samples from `first`, counted from the first one of the region, with the weights from `offset`.
struct Taps {
  int32_t first, count, offset;
  int32_t end() const { return first + count; }
};

// One axis of a plane. The box, which may begin and end within a pixel, is stretched over the outputs; it lies within
// the window, and pixels outside of the window have no weight.
struct Axis {
  double box, length;  // in pixels
  int outputs;
  feeder_filter filter;
  bool antialias;
  Span window;   // pixels
  int each;      // pixels a sample
  bool smooth;   // between samples lies a triangle filter, else they are repeated
  int samples;   // of the whole plane
};

// An upper bound of the count of an output.
int most_taps(const Axis &axis);

// Bytes of scratch memory for doubles that weigh() needs.
size_t weigh_scratch(const Axis &axis);

// Fills taps, one for each output, and weights, which has room for most_taps() a tap, and returns the largest count. The
// weights of an output add up to 1 << bits exactly. Both ends of the taps ascend from output to output.
int weigh(const Axis &axis, int bits, double *scratch, Taps *taps, int32_t *weights);

}  // namespace feeder
