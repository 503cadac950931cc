// Planes for AVX2; this file alone is compiled with -mavx2.

#if defined(__x86_64__)

#include "planes_vectors.h"
#include "vectors_avx2.h"

namespace feeder {
namespace {

// Two rows, dequantised, with the left halves of both in the low lane.
__m256i two_rows(const int16_t *coefficients, const uint16_t *quant) {
  const __m256i product = _mm256_mullo_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(coefficients)),
                                             _mm256_loadu_si256(reinterpret_cast<const __m256i *>(quant)));
  return _mm256_permute4x64_epi64(product, _MM_SHUFFLE(3, 1, 2, 0));
}

bool only_first_row(const int16_t *coefficients) {
  const auto rows = [=](int first) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(coefficients + 8 * first));
  };
  const __m256i all = _mm256_or_si256(_mm256_or_si256(rows(1), rows(2)), _mm256_or_si256(rows(4), rows(6)));
  return _mm256_testz_si256(all, all) != 0;
}

void store_two(uint8_t *out, ptrdiff_t stride, __m128i rows) {
  _mm_storeu_si64(out, rows);
  _mm_storeu_si64(out + stride, _mm_unpackhi_epi64(rows, rows));
}

void idct_islow(const int16_t *coefficients, const uint16_t *quant, uint8_t *out, ptrdiff_t stride) {
  __m256i in04, in26, in17, in53;  // pairs of columns, a row in each lane
  if (only_first_row(coefficients)) {
    const __m128i row = _mm_mullo_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(coefficients)),
                                        _mm_loadu_si128(reinterpret_cast<const __m128i *>(quant)));
    const __m256i pairs = _mm256_broadcastsi128_si256(_mm_shuffle_epi8(
        _mm_slli_epi16(row, kDctBetweenBits), _mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 14, 15, 10, 11, 6, 7)));
    in04 = _mm256_shuffle_epi32(pairs, _MM_SHUFFLE(0, 0, 0, 0));
    in26 = _mm256_shuffle_epi32(pairs, _MM_SHUFFLE(1, 1, 1, 1));
    in17 = _mm256_shuffle_epi32(pairs, _MM_SHUFFLE(2, 2, 2, 2));
    in53 = _mm256_shuffle_epi32(pairs, _MM_SHUFFLE(3, 3, 3, 3));
  } else {
    const __m256i rows01 = two_rows(coefficients, quant), rows23 = two_rows(coefficients + 16, quant + 16);
    const __m256i rows45 = two_rows(coefficients + 32, quant + 32), rows67 = two_rows(coefficients + 48, quant + 48);
    // Columns 0 4 2 6 in the low lane and 1 7 5 3 in the high one, so that the second pass finds its pairs.
    const __m256i order = _mm256_setr_epi32(0, 4, 2, 6, 1, 7, 5, 3);
    const auto ordered = [=](__m256i pairs) { return _mm256_permutevar8x32_epi32(pairs, order); };
    __m256i row[8];
    transform<Avx2, kDctFirstShift>(ordered(_mm256_unpacklo_epi16(rows01, rows45)),
                                    ordered(_mm256_unpacklo_epi16(rows23, rows67)),
                                    ordered(_mm256_unpackhi_epi16(rows01, rows67)),
                                    ordered(_mm256_unpackhi_epi16(rows45, rows23)), row);
    // Transposes pairs: first among four rows, then the two fours together.
    const auto four_rows = [&](int first, __m256i *low, __m256i *high) {
      const __m256i a = _mm256_packs_epi32(row[first], row[first + 2]);
      const __m256i b = _mm256_packs_epi32(row[first + 1], row[first + 3]);
      const __m256i rows_low = _mm256_unpacklo_epi32(a, b), rows_high = _mm256_unpackhi_epi32(a, b);
      *low = _mm256_unpacklo_epi64(rows_low, rows_high);
      *high = _mm256_unpackhi_epi64(rows_low, rows_high);
    };
    __m256i upper04_17, upper26_53, lower04_17, lower26_53;
    four_rows(0, &upper04_17, &upper26_53);
    four_rows(4, &lower04_17, &lower26_53);
    in04 = _mm256_permute2x128_si256(upper04_17, lower04_17, 0x20);
    in17 = _mm256_permute2x128_si256(upper04_17, lower04_17, 0x31);
    in26 = _mm256_permute2x128_si256(upper26_53, lower26_53, 0x20);
    in53 = _mm256_permute2x128_si256(upper26_53, lower26_53, 0x31);
  }
  __m256i column[8], rows01_45, rows23_67;
  transform<Avx2, kDctSecondShift>(in04, in26, in17, in53, column);
  to_rows<Avx2>(column, &rows01_45, &rows23_67);
  store_two(out, stride, _mm256_castsi256_si128(rows01_45));
  store_two(out + 2 * stride, stride, _mm256_castsi256_si128(rows23_67));
  store_two(out + 4 * stride, stride, _mm256_extracti128_si256(rows01_45, 1));
  store_two(out + 6 * stride, stride, _mm256_extracti128_si256(rows23_67, 1));
}

}  // namespace

const Planes kAvx2Planes = {idct_islow, plain::idct_dc};

}  // namespace feeder

#endif
