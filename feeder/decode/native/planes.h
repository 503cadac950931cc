// From the coefficients of a JPEG to samples, once for each instruction set. All levels give the same bytes, and they are
// those of libjpeg-turbo 2.1 and 3 with JDCT_ISLOW on x86-64.
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
};

extern const Planes kPlainPlanes;
#if defined(__x86_64__)
extern const Planes kSse4Planes;
extern const Planes kAvx2Planes;
#elif defined(__aarch64__)
extern const Planes kNeonPlanes;
#endif

// The plain functions, for levels where a compiler vectorises them well enough.
namespace plain {
void idct_islow(const int16_t *coefficients, const uint16_t *quant, uint8_t *out, ptrdiff_t stride);
void idct_dc(int16_t dc, uint16_t quant, uint8_t *out, ptrdiff_t stride);
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

}  // namespace feeder
