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

// And back: 0.299, half of 0.587, and 0.114; -0.168736 and -0.331264; -0.418688 and -0.081312; 0.25: in Q16, as libjpeg has
// them. What has more than 15 bits is taken twice.
constexpr int kYRed = 19595, kHalfYGreen = 19235, kYBlue = 7471;
constexpr int kCbRed = -11059, kCbGreen = -21709, kCrGreen = -27439, kCrBlue = -5329, kHalfChroma = 16384;
// Of a sum of four. Halves are rounded down, so that no mean of them is 256.
constexpr int kChromaRounding = (1 << 17) - 1, kChromaShift = 18;

// Where the other place of a column of chroma is, so many places behind its own.
inline int chroma_columns(int pixels) { return (pixels / 2 + 1) / 2; }
inline int chroma_distance(int pixels) { return pixels / 2 - chroma_columns(pixels); }

struct Level {
  // Output rows that pass from the vertical to the horizontal loop together, as columns of so many words; of eights.
  int rows;

  // Weighs `taps` rows of `samples` bytes into one of words.
  void (*vertical)(const uint8_t *const *rows, const int16_t *weights, int taps, int samples, int16_t *out);

  // Turns rows of `samples` words, `stride` words from each other, into columns.
  void (*turn)(const int16_t *rows, int samples, int stride, int16_t *columns);

  // Weighs columns into columns.
  //   firsts:  first column of each output
  //   weights: `taps` for each output, each twice in a word of 32 bits
  //   out:     columns of which every third is written
  void (*horizontal)(const int16_t *columns, const int32_t *firsts, const uint32_t *weights, int taps, int outputs,
                     int16_t *out);

  // Changes the three columns of each pixel from Y, Cb, Cr to R, G, B.
  void (*ycc_to_rgb)(int16_t *columns, int pixels);

  // Makes columns of YUV 4:2:0 of those of R, G and B in whole levels: Y of each pixel; Cb and Cr of the means of 2x2, of
  // which a column has those of two places: in each eight words the first four are of its own place, the others of the
  // place that is chroma_distance behind it.
  //   pixels: of a row, even
  //   cb, cr: chroma_columns
  void (*rgb_to_yuv420)(const int16_t *columns, int pixels, int16_t *y, int16_t *cb, int16_t *cr);

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
