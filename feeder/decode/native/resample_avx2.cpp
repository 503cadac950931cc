// The inner loops for AVX2; this file alone is compiled with -mavx2.

#if defined(__x86_64__)

#include <immintrin.h>

#include "resample_level.h"

namespace feeder {
namespace {

__m256i load(const void *at) { return _mm256_loadu_si256(static_cast<const __m256i *>(at)); }
void store(void *at, __m128i value) { _mm_storeu_si128(static_cast<__m128i *>(at), value); }

// R G B X R' G' B' X' to R R' G G' B B' X X' in each half, one half to each of two pairs.
void store_pairs(int16_t *out, __m256i samples) {
  const __m256i order = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15,  //
                                         0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  const __m256i pairs = _mm256_shuffle_epi8(samples, order);
  store(out, _mm256_castsi256_si128(pairs));
  store(out + kPairStride, _mm256_extracti128_si256(pairs, 1));
}

void widen_16(const uint8_t *row, int16_t *out) {
  const __m128i samples = _mm_loadu_si128(reinterpret_cast<const __m128i *>(row));
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepu8_epi16(samples), kWideBits);
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(out), wide);
}

void widen(const uint8_t *row, int blocks, int16_t *out) {
  for (int block = 0; block < blocks; ++block, row += 64, out += 64) {
    widen_16(row, out);
    widen_16(row + 16, out + 16);
    widen_16(row + 32, out + 32);
    widen_16(row + 48, out + 48);
  }
}

void vertical(const int16_t *const *rows, const int16_t *weights, int taps, int blocks, int16_t *out) {
  for (int block = 0; block < blocks; ++block, out += kBlockPixels / 2 * kPairStride) {
    const ptrdiff_t from = static_cast<ptrdiff_t>(block) * kBlockPixels * 4;
    __m256i sum0 = _mm256_setzero_si256(), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (int tap = 0; tap < taps; ++tap) {
      const int16_t *source = rows[tap] + from;
      const __m256i weight = _mm256_set1_epi16(weights[tap]);
      sum0 = _mm256_add_epi16(sum0, _mm256_mulhrs_epi16(load(source), weight));
      sum1 = _mm256_add_epi16(sum1, _mm256_mulhrs_epi16(load(source + 16), weight));
      sum2 = _mm256_add_epi16(sum2, _mm256_mulhrs_epi16(load(source + 32), weight));
      sum3 = _mm256_add_epi16(sum3, _mm256_mulhrs_epi16(load(source + 48), weight));
    }
    store_pairs(out, sum0);
    store_pairs(out + 2 * kPairStride, sum1);
    store_pairs(out + 4 * kPairStride, sum2);
    store_pairs(out + 6 * kPairStride, sum3);
  }
}

// Sums of one output: rows 0 and 1 in the halves of one vector, 2 and 3 in the other.
struct Sums {
  __m256i rows01, rows23;
};

template <int fixed>
Sums weigh(const int16_t *pair, const uint32_t *weights, int pairs) {
  Sums sums = {_mm256_set1_epi32(1 << (kSumBits - 1)), _mm256_set1_epi32(1 << (kSumBits - 1))};
  for (int tap = 0; tap < (fixed != 0 ? fixed : pairs); ++tap, pair += kPairStride) {
    const __m256i weight = _mm256_set1_epi32(static_cast<int32_t>(weights[tap]));
    sums.rows01 = _mm256_add_epi32(sums.rows01, _mm256_madd_epi16(load(pair), weight));
    sums.rows23 = _mm256_add_epi32(sums.rows23, _mm256_madd_epi16(load(pair + 2 * kPairSamples), weight));
  }
  return {_mm256_srai_epi32(sums.rows01, kSumBits), _mm256_srai_epi32(sums.rows23, kSumBits)};
}

// `fixed` pairs an output, known to the compiler, or any number where it is 0.
template <int fixed>
void horizontal_with(const int16_t *in, const int32_t *firsts, const uint32_t *weights, int pairs, int outputs,
                     uint8_t *out, size_t out_stride) {
  for (int x = 0; x < outputs; x += 2, out += 8, weights += 2 * pairs) {
    const Sums a = weigh<fixed>(in + static_cast<ptrdiff_t>(firsts[x]) * kPairStride, weights, pairs);
    const Sums b = weigh<fixed>(in + static_cast<ptrdiff_t>(firsts[x + 1]) * kPairStride, weights + pairs, pairs);
    // In the low half rows 0 and 2 of both outputs, in the high half rows 1 and 3.
    const __m256i bytes = _mm256_shuffle_epi32(_mm256_packus_epi16(_mm256_packs_epi32(a.rows01, a.rows23),
                                                                   _mm256_packs_epi32(b.rows01, b.rows23)),
                                               _MM_SHUFFLE(3, 1, 2, 0));
    const __m128i even = _mm256_castsi256_si128(bytes), odd = _mm256_extracti128_si256(bytes, 1);
    _mm_storeu_si64(out, even);
    _mm_storeu_si64(out + out_stride, odd);
    _mm_storeu_si64(out + 2 * out_stride, _mm_unpackhi_epi64(even, even));
    _mm_storeu_si64(out + 3 * out_stride, _mm_unpackhi_epi64(odd, odd));
  }
}

void horizontal(const int16_t *in, const int32_t *firsts, const uint32_t *weights, int pairs, int outputs,
                uint8_t *out, size_t out_stride) {
  const auto loop = pairs == 1   ? horizontal_with<1>
                    : pairs == 2 ? horizontal_with<2>
                    : pairs == 3 ? horizontal_with<3>
                    : pairs == 4 ? horizontal_with<4>
                                 : horizontal_with<0>;
  loop(in, firsts, weights, pairs, outputs, out, out_stride);
}

}  // namespace

const Level kAvx2Level = {widen, vertical, horizontal, kSse4Level.pack};

}  // namespace feeder

#endif
