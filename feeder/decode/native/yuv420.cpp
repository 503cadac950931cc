#include "yuv420.h"

namespace feeder {
namespace {

// 0.299, 0.587 and 0.114; -0.168736, -0.331264 and 0.5; 0.5, -0.418688 and -0.081312, in Q16 as libjpeg has them.
constexpr int32_t kY[] = {19595, 38470, 7471}, kCb[] = {-11059, -21709, 32768}, kCr[] = {32768, -27439, -5329};

int32_t weigh(const int32_t (&weights)[3], const int32_t *rgb) {
  return weights[0] * rgb[0] + weights[1] * rgb[1] + weights[2] * rgb[2];
}

// Of the sum of four pixels. Halves are rounded down, so that no sum gives 256.
uint8_t chroma(const int32_t (&weights)[3], const int32_t *sums) {
  constexpr int32_t kOffset = (128 << 18) + (1 << 17) - 1;
  return static_cast<uint8_t>((weigh(weights, sums) + kOffset) >> 18);
}

}  // namespace

Yuv420::Yuv420(uint8_t *out, int pixels_across, int pixels_down) : width(pixels_across) {
  const auto luma_bytes = static_cast<size_t>(pixels_across) * static_cast<size_t>(pixels_down);
  chroma_bytes = luma_bytes / 4;
  plane[0] = out;
  plane[1] = out + luma_bytes;
  plane[2] = plane[1] + chroma_bytes;
}

void Yuv420::write_rows(const uint8_t *const *rgb, int first, int count) const {
  const auto row_bytes = static_cast<size_t>(width);
  for (int y = 0; y < count; ++y) {
    uint8_t *const luma = plane[0] + static_cast<size_t>(first + y) * row_bytes;
    for (int x = 0; x < width; ++x) {
      const uint8_t *const pixel = rgb[y] + 3 * x;
      const int32_t values[] = {pixel[0], pixel[1], pixel[2]};
      luma[x] = static_cast<uint8_t>((weigh(kY, values) + (1 << 15)) >> 16);
    }
  }
  for (int y = 0; y < count; y += 2) {
    const size_t at = static_cast<size_t>(first + y) / 2 * (row_bytes / 2);
    for (int x = 0; x < width; x += 2) {
      const uint8_t *const upper = rgb[y] + 3 * x, *const lower = rgb[y + 1] + 3 * x;
      int32_t sums[3];
      for (int i = 0; i < 3; ++i) sums[i] = upper[i] + upper[i + 3] + lower[i] + lower[i + 3];
      plane[1][at + static_cast<size_t>(x / 2)] = chroma(kCb, sums);
      plane[2][at + static_cast<size_t>(x / 2)] = chroma(kCr, sums);
    }
  }
}

}  // namespace feeder
