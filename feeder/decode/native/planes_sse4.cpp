// Planes for SSE4.1; this file alone is compiled with -msse4.1.

#if defined(__x86_64__)

#include "planes_vectors.h"
#include "vectors_sse4.h"

namespace feeder {
namespace {

__m128i load(const void *at) { return _mm_loadu_si128(static_cast<const __m128i *>(at)); }

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

const Planes kSse4Planes = {idct_islow, plain::idct_dc};

}  // namespace feeder

#endif
