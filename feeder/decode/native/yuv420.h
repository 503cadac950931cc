// YUV 4:2:0 in memory, and the slow way there for pixels that were not made of Y, Cb and Cr.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feeder {

// Y, Cb and Cr of width x height pixels, both even, one plane after the other.
struct Yuv420 {
  uint8_t *plane[3];
  size_t chroma_bytes;  // of each of the two
  int width;

  Yuv420(uint8_t *out, int pixels_across, int pixels_down);

  // Converts `count` rows of R, G and B from row `first` on, both even, by JFIF's formula; chroma is the mean of 2x2.
  void write_rows(const uint8_t *const *rgb, int first, int count) const;
};

}  // namespace feeder
