// The inner loops of resampling, once for each instruction set. All levels compute the same integers.
//
// Number formats, all of 16 bits: samples lose 128, so that they are signed, and come in Q8 (256 is one level); weights
// are Q14 (16384 is 1.0); products are rounded one by one, to Q7 after the vertical loop and to Q6 after the horizontal
// one, which leaves room for what bicubic overshoots.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg_crop.h"

namespace feeder {

constexpr int kWeightBits = 14;
constexpr int kSampleBits = 8;
constexpr int kRowBits = kSampleBits + kWeightBits - 15;
constexpr int kColumnBits = kRowBits + kWeightBits - 15;

// Rows of samples are read, and rows and columns of words written, up to a multiple of this.
constexpr int kBlock = 64;
// Of any level.
constexpr int kMostRows = 32;

// From Y, Cb and Cr to R, G and B: 1.402, 0.714136, 0.344136 and 1.772, without their whole part, in Q15.
constexpr int kRedCr = 13173, kGreenCr = 23401, kGreenCb = 11277, kBlueCb = 25297;

struct Level {
  // Output rows that pass from the vertical to the horizontal loop together, as columns of so many words.
  int rows;

  // Weighs `taps` rows of `samples` bytes into one of words.
  void (*vertical)(const uint8_t *const *rows, const int16_t *weights, int taps, int samples, int16_t *out);

  // Turns rows of `samples` words, `stride` words from each other, into columns.
  void (*turn)(const int16_t *rows, int samples, int stride, int16_t *columns);

  // Weighs columns into columns.
  //   firsts:  first column of each output
  //   weights: `taps` for each output, each twice in a word of 32 bits
  //   out:     columns of which every `step`th is written
  void (*horizontal)(const int16_t *columns, const int32_t *firsts, const uint32_t *weights, int taps, int outputs,
                     int16_t *out, int step);

  // Changes the three columns of each pixel from Y, Cb, Cr to R, G, B.
  void (*ycc_to_rgb)(int16_t *columns, int pixels);

  // Turns columns into rows of `count` bytes, and stores no byte more.
  void (*finish)(const int16_t *columns, int count, uint8_t *const *rows);
};

extern const Level kPlainLevel;
#if defined(__x86_64__)
extern const Level kSse4Level;
extern const Level kAvx2Level;
extern const Level kAvx512Level;
#elif defined(__aarch64__)
extern const Level kNeonLevel;
#endif

// The plain function, for few columns of `height` words.
namespace plain {
void finish(const int16_t *columns, int height, int count, uint8_t *const *rows);
}  // namespace plain

}  // namespace feeder
