// From the coefficients of a JPEG to rows of pixels: inverse DCT, upsampling of chroma and colour, once for each
// instruction set. All levels give the same bytes, and they are those of libjpeg-turbo 2.1 and 3 with JDCT_ISLOW,
// fancy upsampling and JCS_EXT_RGBX on x86-64.
//
// Coefficients that no encoder makes overflow 16 bits. Then too these functions give what libjpeg-turbo's SSE2 and
// AVX2 code does: products and first sums wrap at 16 bits, results of both passes saturate. Its plain C code differs
// there, and only there.
//
// No argument needs alignment. Nothing is read or written beyond what is said; input and output don't overlap.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feeder {

struct Planes {
  // Dequantises and transforms one block.
  //   coefficients, quant: 64 each, in natural order (row by row)
  //   out:                 8 rows of 8 samples, stride bytes apart
  void (*idct_islow)(const int16_t *coefficients, const uint16_t *quant, uint8_t *out, ptrdiff_t stride);

  // The same for a block whose other 63 coefficients are zero.
  void (*idct_dc)(int16_t dc, uint16_t quant, uint8_t *out, ptrdiff_t stride);

  // Which upsampling a component gets, by its sampling factors against the largest ones of the image, and its width
  // in samples, ceil(image width * factor / largest factor):
  //   half width, full height, more than 2 samples wide: upsample_h2v1
  //   half width, half height, more than 2 samples wide: upsample_h2v2
  //   full width, half height:                           upsample_h1v2
  // What is narrower, or another whole fraction, has its samples repeated. Rows beyond the first and the last of
  // ceil(image height * factor / largest factor) rows are copies of those.

  // Triangle filter across: 2 * width samples from the `width` samples of one row, width >= 1.
  void (*upsample_h2v1)(const uint8_t *in, int width, uint8_t *out);

  // Triangle filter both ways: 2 * width samples. An upper output row has its further input row above the near one,
  // a lower output row below.
  void (*upsample_h2v2)(const uint8_t *near_row, const uint8_t *far_row, int width, uint8_t *out);

  // Triangle filter down: width samples. `lower` is 1 for a lower output row, which rounds the other way, else 0.
  void (*upsample_h1v2)(const uint8_t *near_row, const uint8_t *far_row, int width, uint8_t *out, int lower);

  // width pixels of R G B 255, from samples of JFIF's YCbCr or from luminance alone.
  void (*ycc_to_rgbx)(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int width, uint8_t *out);
  void (*gray_to_rgbx)(const uint8_t *y, int width, uint8_t *out);
};

extern const Planes kPlainPlanes;
#if defined(__x86_64__)
extern const Planes kSse4Planes;
extern const Planes kAvx2Planes;
#endif

// The plain functions, for other levels where a compiler vectorises them well enough or vectors don't fit.
namespace plain {
void idct_islow(const int16_t *coefficients, const uint16_t *quant, uint8_t *out, ptrdiff_t stride);
void idct_dc(int16_t dc, uint16_t quant, uint8_t *out, ptrdiff_t stride);
void upsample_h2v1(const uint8_t *in, int width, uint8_t *out);
void upsample_h2v2(const uint8_t *near_row, const uint8_t *far_row, int width, uint8_t *out);
void upsample_h1v2(const uint8_t *near_row, const uint8_t *far_row, int width, uint8_t *out, int lower);
void ycc_to_rgbx(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int width, uint8_t *out);
void gray_to_rgbx(const uint8_t *y, int width, uint8_t *out);
}  // namespace plain

// The inverse DCT is that of Loeffler, Ligtenberg and Moschytz in 13-bit fixed point, as libjpeg's "islow" has it.
// Rows between the passes keep 2 bits below the point; both passes together scale by 8.
constexpr int kDctBits = 13;
constexpr int kDctBetweenBits = 2;
constexpr int kDctFirstShift = kDctBits - kDctBetweenBits;
constexpr int kDctSecondShift = kDctBits + kDctBetweenBits + 3;

constexpr int kDct0_298 = 2446, kDct0_390 = 3196, kDct0_541 = 4433, kDct0_765 = 6270, kDct0_899 = 7373,
              kDct1_175 = 9633, kDct1_501 = 12299, kDct1_847 = 15137, kDct1_961 = 16069, kDct2_053 = 16819,
              kDct2_562 = 20995, kDct3_072 = 25172;

// Factors of chroma in 16-bit fixed point: 1.402, 0.714136, 0.344136, 1.772, as libjpeg rounds them.
constexpr int kRedCr = 91881, kGreenCr = 46802, kGreenCb = 22554, kBlueCb = 116130;

}  // namespace feeder
