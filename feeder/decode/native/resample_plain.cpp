// The inner loops in plain C++: what the other levels have to equal.

#include <algorithm>

#include "resample_level.h"

namespace feeder {
namespace {

constexpr int kRows = 16;

int32_t product(int32_t value, int32_t weight) { return (value * weight + 0x4000) >> 15; }

int16_t saturate(int32_t value) { return static_cast<int16_t>(std::clamp(value, -0x8000, 0x7FFF)); }

void vertical(const uint8_t *const *rows, const int16_t *weights, int taps, int samples, int16_t *out) {
  const auto weighed = [=](int tap, int x) {
    return product((rows[tap][x] - 128) * (1 << kSampleBits), weights[tap]);
  };
  for (int x = 0; x < samples; ++x) out[x] = static_cast<int16_t>(weighed(0, x));
  for (int tap = 1; tap < taps; ++tap) {
    for (int x = 0; x < samples; ++x) out[x] = static_cast<int16_t>(out[x] + weighed(tap, x));
  }
}

void turn(const int16_t *rows, int samples, int stride, int16_t *columns) {
  for (int y = 0; y < kRows; ++y) {
    for (int x = 0; x < samples; ++x) columns[x * kRows + y] = rows[y * stride + x];
  }
}

void horizontal(const int16_t *columns, const int32_t *firsts, const uint32_t *weights, int taps, int outputs,
                int16_t *out) {
  for (int output = 0; output < outputs; ++output, out += 3 * kRows, weights += taps) {
    const int16_t *column = columns + static_cast<ptrdiff_t>(firsts[output]) * kRows;
    int32_t sums[kRows] = {};
    for (int tap = 0; tap < taps; ++tap, column += kRows) {
      const int32_t weight = static_cast<int16_t>(weights[tap] & 0xFFFFU);
      for (int y = 0; y < kRows; ++y) sums[y] += product(column[y], weight);
    }
    for (int y = 0; y < kRows; ++y) out[y] = static_cast<int16_t>(sums[y]);
  }
}

void ycc_to_rgb(int16_t *columns, int pixels) {
  for (int i = 0; i < pixels; ++i, columns += 3 * kRows) {
    for (int row = 0; row < kRows; ++row) {
      int16_t &red = columns[row], &green = columns[kRows + row], &blue = columns[2 * kRows + row];
      const int32_t y = red, cb = green, cr = blue;
      red = saturate(y + saturate(cr + product(cr, kRedCr)));
      green = saturate(y - saturate(product(cb, kGreenCb) + product(cr, kGreenCr)));
      blue = saturate(y + saturate(cb + product(cb, kBlueCb)));
    }
  }
}

// A value in whole levels, less 128.
int32_t level_of(int16_t value) { return std::clamp(product(value, 1 << (15 - kColumnBits)), -128, 127); }

int16_t column_of(int32_t level) { return static_cast<int16_t>(level * (1 << kColumnBits)); }

void rgb_to_yuv420(const int16_t *columns, int pixels, int16_t *y, int16_t *cb, int16_t *cr) {
  for (int pixel = 0; pixel < pixels; ++pixel) {
    const int16_t *const rgb = columns + ptrdiff_t{3} * kRows * pixel;
    for (int row = 0; row < kRows; ++row) {
      const int32_t sum = kYRed * level_of(rgb[row]) + 2 * kHalfYGreen * level_of(rgb[kRows + row]) +
                          kYBlue * level_of(rgb[2 * kRows + row]);
      y[pixel * kRows + row] = column_of((sum + (1 << 15)) >> 16);
    }
  }
  for (int column = 0; column < chroma_columns(pixels); ++column) {
    for (int word = 0; word < kRows; ++word) {
      const int place = column + (word % 8 < 4 ? 0 : chroma_distance(pixels)), row = 2 * (word / 8 * 4 + word % 4);
      int32_t sums[3];
      for (int i = 0; i < 3; ++i) {
        const int16_t *const left = columns + ptrdiff_t{3} * kRows * 2 * place + i * kRows + row;
        const int16_t *const right = left + 3 * kRows;
        sums[i] = level_of(left[0]) + level_of(left[1]) + level_of(right[0]) + level_of(right[1]);
      }
      const int32_t blue = kCbRed * sums[0] + kCbGreen * sums[1] + 2 * kHalfChroma * sums[2];
      const int32_t red = 2 * kHalfChroma * sums[0] + kCrGreen * sums[1] + kCrBlue * sums[2];
      cb[column * kRows + word] = column_of((blue + kChromaRounding) >> kChromaShift);
      cr[column * kRows + word] = column_of((red + kChromaRounding) >> kChromaShift);
    }
  }
}

void finish(const int16_t *columns, int count, uint8_t *const *rows) { plain::finish(columns, kRows, count, rows); }

}  // namespace

void plain::finish(const int16_t *columns, int height, int count, uint8_t *const *rows) {
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < count; ++x) {
      const int32_t value = product(columns[x * height + y], 1 << (15 - kColumnBits));
      rows[y][x] = static_cast<uint8_t>(std::clamp(value, -128, 127) + 128);
    }
  }
}

const Level kPlainLevel = {kRows, vertical, turn, horizontal, ycc_to_rgb, rgb_to_yuv420, finish};

}  // namespace feeder
