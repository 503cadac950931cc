// Planes for SSE4.1; this file alone is compiled with -msse4.1.

#if defined(__x86_64__)

#include <smmintrin.h>

#include "planes_x86.h"

namespace feeder {
namespace {

__m128i load(const void *at) { return _mm_loadu_si128(static_cast<const __m128i *>(at)); }

struct Sse4 {
  using Vector = __m128i;
  static constexpr int kWords = 8;

  static Vector words16(int value) { return _mm_set1_epi16(static_cast<int16_t>(value)); }
  static Vector words32(int32_t value) { return _mm_set1_epi32(value); }
  static Vector pairs(int low, int high) {
    return words32(static_cast<int32_t>(static_cast<uint32_t>(high) << 16 | (static_cast<uint32_t>(low) & 0xFFFFU)));
  }
  template <typename... Bytes>
  static Vector bytes(Bytes... each) { return _mm_setr_epi8(static_cast<char>(each)...); }
  static Vector add16(Vector a, Vector b) { return _mm_add_epi16(a, b); }
  static Vector sub16(Vector a, Vector b) { return _mm_sub_epi16(a, b); }
  static Vector add32(Vector a, Vector b) { return _mm_add_epi32(a, b); }
  static Vector sub32(Vector a, Vector b) { return _mm_sub_epi32(a, b); }
  static Vector madd(Vector a, Vector b) { return _mm_madd_epi16(a, b); }
  static Vector mulhi(Vector a, Vector b) { return _mm_mulhi_epi16(a, b); }
  static Vector flip_bits(Vector a, Vector b) { return _mm_xor_si128(a, b); }
  static Vector to_high(Vector a) { return _mm_slli_epi32(a, 16); }
  template <int bits>
  static Vector shift16(Vector a) { return _mm_srai_epi16(a, bits); }
  template <int bits>
  static Vector shift32(Vector a) { return _mm_srai_epi32(a, bits); }
  static Vector pack32(Vector a, Vector b) { return _mm_packs_epi32(a, b); }
  static Vector pack16(Vector a, Vector b) { return _mm_packs_epi16(a, b); }
  static Vector pack_unsigned(Vector a, Vector b) { return _mm_packus_epi16(a, b); }
  static Vector low8(Vector a, Vector b) { return _mm_unpacklo_epi8(a, b); }
  static Vector high8(Vector a, Vector b) { return _mm_unpackhi_epi8(a, b); }
  static Vector low16(Vector a, Vector b) { return _mm_unpacklo_epi16(a, b); }
  static Vector high16(Vector a, Vector b) { return _mm_unpackhi_epi16(a, b); }
  static Vector low32(Vector a, Vector b) { return _mm_unpacklo_epi32(a, b); }
  static Vector high32(Vector a, Vector b) { return _mm_unpackhi_epi32(a, b); }
  static Vector shuffle(Vector a, Vector order) { return _mm_shuffle_epi8(a, order); }
  static Vector weave(Vector even, Vector odd) { return _mm_or_si128(even, _mm_slli_epi16(odd, 8)); }
  static Vector widen(const uint8_t *at) { return _mm_cvtepu8_epi16(_mm_loadu_si64(at)); }
  static void store(uint8_t *at, Vector value) { _mm_storeu_si128(reinterpret_cast<__m128i *>(at), value); }
  static void store_halves(uint8_t *at, Vector a, Vector b) {
    store(at, a);
    store(at + 16, b);
  }
};

bool only_first_row(const int16_t *coefficients) {
  __m128i all = load(coefficients + 8);
  for (int y = 2; y < 8; ++y) all = _mm_or_si128(all, load(coefficients + 8 * y));
  return _mm_testz_si128(all, all) != 0;
}

void store_two(uint8_t *out, ptrdiff_t stride, __m128i rows) {
  _mm_storeu_si64(out, rows);
  _mm_storeu_si64(out + stride, _mm_unpackhi_epi64(rows, rows));
}

void idct_islow(const int16_t *coefficients, const uint16_t *quant, uint8_t *out, ptrdiff_t stride) {
  __m128i row[8];
  for (int y = 0; y < 8; ++y) row[y] = _mm_mullo_epi16(load(coefficients + 8 * y), load(quant + 8 * y));
  if (only_first_row(coefficients)) {
    row[0] = _mm_slli_epi16(row[0], kDctBetweenBits);
    for (int y = 1; y < 8; ++y) row[y] = row[0];
  } else {
    __m128i left[8], right[8];
    transform<Sse4, kDctFirstShift>(_mm_unpacklo_epi16(row[0], row[4]), _mm_unpacklo_epi16(row[2], row[6]),
                                    _mm_unpacklo_epi16(row[1], row[7]), _mm_unpacklo_epi16(row[5], row[3]), left);
    transform<Sse4, kDctFirstShift>(_mm_unpackhi_epi16(row[0], row[4]), _mm_unpackhi_epi16(row[2], row[6]),
                                    _mm_unpackhi_epi16(row[1], row[7]), _mm_unpackhi_epi16(row[5], row[3]), right);
    for (int y = 0; y < 8; ++y) row[y] = _mm_packs_epi32(left[y], right[y]);
  }
  const __m128i order = _mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 14, 15, 10, 11, 6, 7);
  for (int y = 0; y < 8; y += 4, out += 4 * stride) {
    // Transposes four rows of the pairs of columns 04, 26, 17 and 53.
    const __m128i row0 = _mm_shuffle_epi8(row[y], order), row1 = _mm_shuffle_epi8(row[y + 1], order);
    const __m128i row2 = _mm_shuffle_epi8(row[y + 2], order), row3 = _mm_shuffle_epi8(row[y + 3], order);
    const __m128i upper04_26 = _mm_unpacklo_epi32(row0, row1), upper17_53 = _mm_unpackhi_epi32(row0, row1);
    const __m128i lower04_26 = _mm_unpacklo_epi32(row2, row3), lower17_53 = _mm_unpackhi_epi32(row2, row3);
    __m128i column[8], rows01, rows23;
    transform<Sse4, kDctSecondShift>(_mm_unpacklo_epi64(upper04_26, lower04_26),
                                     _mm_unpackhi_epi64(upper04_26, lower04_26),
                                     _mm_unpacklo_epi64(upper17_53, lower17_53),
                                     _mm_unpackhi_epi64(upper17_53, lower17_53), column);
    to_rows<Sse4>(column, &rows01, &rows23);
    store_two(out, stride, rows01);
    store_two(out + 2 * stride, stride, rows23);
  }
}

}  // namespace

const Planes kSse4Planes = {idct_islow,           plain::idct_dc,    upsample_h2v1<Sse4>, upsample_h2v2<Sse4>,
                            plain::upsample_h1v2, ycc_to_rgbx<Sse4>, gray_to_rgbx<Sse4>};

}  // namespace feeder

#endif
