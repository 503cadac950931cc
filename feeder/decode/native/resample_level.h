// The inner loops of resampling, once for each instruction set. All levels compute the same integers.
//
// Number formats: source samples are 8 bits, widened to Q7 (128 is one level); weights are Q14 (16384 is 1.0); the rows
// between the passes are Q6, which leaves int16 room for what bicubic overshoots.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg_crop.h"

namespace feeder {

constexpr int kWideBits = 7;
constexpr int kWeightBits = 14;
constexpr int kBetweenBits = 6;
constexpr int kSumBits = kWeightBits + kBetweenBits;

// Output rows that pass from the vertical to the horizontal loop together.
constexpr int kRows = 4;
// Between the passes two neighbouring pixels lie channel by channel (R R' G G' B B' X X'), so that one multiply-add
// of 16-bit pairs serves two taps; for each such pair the rows of a group follow each other.
constexpr int kPairSamples = 8;
constexpr int kPairStride = kRows * kPairSamples;
// Source rows are read, and between-rows written, in blocks of so many pixels: buffers are padded up to a multiple.
constexpr int kBlockPixels = 16;

struct Level {
  // Widens blocks * kBlockPixels * 4 samples of a source row to Q7.
  void (*widen)(const uint8_t *row, int blocks, int16_t *out);

  // Weighs `taps` widened rows into one row of a group.
  //   rows:    taps pointers to blocks * kBlockPixels * 4 samples each
  //   weights: taps of Q14
  //   out:     blocks * kBlockPixels / 2 pairs, kPairStride apart; the caller has added the row's offset
  void (*vertical)(const int16_t *const *rows, const int16_t *weights, int taps, int blocks, int16_t *out);

  // Weighs pairs of pixels into two outputs at a time, in each row of a group.
  //   in:      the group, kPairStride a pair
  //   firsts:  first pair of each output
  //   weights: `pairs` for each output: Q14 of the left pixel in the low half, of the right one in the high half
  //   outputs: an even number
  //   out:     kRows rows of RGBX, out_stride bytes apart
  void (*horizontal)(const int16_t *in, const int32_t *firsts, const uint32_t *weights, int pairs, int outputs,
                     uint8_t *out, size_t out_stride);

  // Drops X: `pixels` pixels of RGBX to RGB, storing exactly pixels * 3 bytes.
  void (*pack)(const uint8_t *rgbx, int pixels, uint8_t *rgb);
};

extern const Level kPlainLevel;
#if defined(__x86_64__)
extern const Level kSse4Level;
extern const Level kAvx2Level;
#endif

}  // namespace feeder
