// The inner loops for AVX2; this file alone is compiled with -mavx2.

#if defined(__x86_64__)

#include <immintrin.h>

#include "resample_level.h"

namespace feeder {
namespace {

__m256i load(const void *at) { return _mm256_loadu_si256(static_cast<const __m256i *>(at)); }
void store(void *at, __m128i value) { _mm_storeu_si128(static_cast<__m128i *>(at), value); }

// 16 samples as Q7 in 16 bits.
__m256i widen(const uint8_t *at) {
  return _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at))), 7);
}

// R G B X R' G' B' X' to R R' G G' B B' X X' in each half, one half to each of two pairs.
void store_pairs(int16_t *out, __m256i samples) {
  const __m256i order = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15,  //
                                         0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  const __m256i pairs = _mm256_shuffle_epi8(samples, order);
  store(out, _mm256_castsi256_si128(pairs));
  store(out + kPairStride, _mm256_extracti128_si256(pairs, 1));
}

void vertical(const uint8_t *const *rows, const int16_t *weights, int taps, int blocks, int16_t *out) {
  for (int block = 0; block < blocks; ++block, out += kBlockPixels / 2 * kPairStride) {
    const ptrdiff_t from = static_cast<ptrdiff_t>(block) * kBlockPixels * 4;
    __m256i sum0 = _mm256_setzero_si256(), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (int tap = 0; tap < taps; ++tap) {
      const uint8_t *source = rows[tap] + from;
      const __m256i weight = _mm256_set1_epi16(weights[tap]);
      sum0 = _mm256_add_epi16(sum0, _mm256_mulhrs_epi16(widen(source), weight));
      sum1 = _mm256_add_epi16(sum1, _mm256_mulhrs_epi16(widen(source + 16), weight));
      sum2 = _mm256_add_epi16(sum2, _mm256_mulhrs_epi16(widen(source + 32), weight));
      sum3 = _mm256_add_epi16(sum3, _mm256_mulhrs_epi16(widen(source + 48), weight));
    }
    store_pairs(out, sum0);
    store_pairs(out + 2 * kPairStride, sum1);
    store_pairs(out + 4 * kPairStride, sum2);
    store_pairs(out + 6 * kPairStride, sum3);
  }
}

void horizontal(const int16_t *in, const Taps *taps, const uint32_t *weights, int outputs, uint8_t *out,
                size_t out_stride) {
  const __m256i half = _mm256_set1_epi32(1 << (kSumBits - 1));
  for (int x = 0; x < outputs; ++x, out += 4) {
    __m256i sum01 = half, sum23 = half;
    const int16_t *pair = in + static_cast<ptrdiff_t>(taps[x].first) * kPairStride;
    for (int tap = 0; tap < taps[x].count; ++tap, pair += kPairStride, ++weights) {
      const __m256i weight = _mm256_set1_epi32(static_cast<int32_t>(*weights));
      sum01 = _mm256_add_epi32(sum01, _mm256_madd_epi16(load(pair), weight));
      sum23 = _mm256_add_epi32(sum23, _mm256_madd_epi16(load(pair + 2 * kPairSamples), weight));
    }
    const __m256i words =
        _mm256_packs_epi32(_mm256_srai_epi32(sum01, kSumBits), _mm256_srai_epi32(sum23, kSumBits));
    const __m256i bytes = _mm256_packus_epi16(words, words);
    const __m128i even = _mm256_castsi256_si128(bytes), odd = _mm256_extracti128_si256(bytes, 1);
    _mm_storeu_si32(out, even);
    _mm_storeu_si32(out + out_stride, odd);
    _mm_storeu_si32(out + 2 * out_stride, _mm_srli_si128(even, 4));
    _mm_storeu_si32(out + 3 * out_stride, _mm_srli_si128(odd, 4));
  }
}

}  // namespace

const Level kAvx2Level = {vertical, horizontal, kSse4Level.pack};

}  // namespace feeder

#endif
