// The inner loops in plain C++: what the other levels have to equal, and what the compiler vectorises elsewhere.

#include <algorithm>

#include "resample_level.h"

namespace feeder {
namespace {

void widen(const uint8_t *row, int blocks, int16_t *out) {
  for (int i = 0; i < blocks * kBlockPixels * 4; ++i) out[i] = static_cast<int16_t>(row[i] << kWideBits);
}

void vertical(const int16_t *const *rows, const int16_t *weights, int taps, int blocks, int16_t *out) {
  const int samples = blocks * kBlockPixels * 4;
  for (int from = 0; from < samples; from += kPairSamples) {
    int32_t sums[kPairSamples] = {};
    for (int tap = 0; tap < taps; ++tap) {
      const int16_t *source = rows[tap] + from;
      for (int i = 0; i < kPairSamples; ++i) sums[i] += (source[i] * weights[tap] + 0x4000) >> 15;
    }
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = static_cast<int16_t>(sums[i]);
      out[2 * i + 1] = static_cast<int16_t>(sums[4 + i]);
    }
    out += kPairStride;
  }
}

void horizontal(const int16_t *in, const int32_t *firsts, const uint32_t *weights, int pairs, int outputs,
                uint8_t *out, size_t out_stride) {
  for (int x = 0; x < outputs; ++x) {
    int32_t sums[kRows][4];
    for (auto &row : sums) std::fill(row, row + 4, 1 << (kSumBits - 1));
    const int16_t *pair = in + static_cast<ptrdiff_t>(firsts[x]) * kPairStride;
    for (int tap = 0; tap < pairs; ++tap, pair += kPairStride, ++weights) {
      const int32_t left = static_cast<int16_t>(*weights & 0xFFFF);
      const int32_t right = static_cast<int16_t>(*weights >> 16);
      for (int row = 0; row < kRows; ++row) {
        const int16_t *samples = pair + row * kPairSamples;
        for (int i = 0; i < 4; ++i) sums[row][i] += samples[2 * i] * left + samples[2 * i + 1] * right;
      }
    }
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < 4; ++i) {
        out[static_cast<size_t>(row) * out_stride + static_cast<size_t>(4 * x + i)] =
            static_cast<uint8_t>(std::clamp(sums[row][i] >> kSumBits, 0, 255));
      }
    }
  }
}

void pack(const uint8_t *rgbx, int pixels, uint8_t *rgb) {
  for (int i = 0; i < pixels; ++i, rgbx += 4, rgb += 3) {
    rgb[0] = rgbx[0];
    rgb[1] = rgbx[1];
    rgb[2] = rgbx[2];
  }
}

}  // namespace

const Level kPlainLevel = {widen, vertical, horizontal, pack};

}  // namespace feeder
