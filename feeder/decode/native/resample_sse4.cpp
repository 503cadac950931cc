// The inner loops for SSE4.1; this file alone is compiled with -msse4.1.

#if defined(__x86_64__)

#include <smmintrin.h>

#include "resample_level.h"

namespace feeder {
namespace {

__m128i load(const void *at) { return _mm_loadu_si128(static_cast<const __m128i *>(at)); }
void store(void *at, __m128i value) { _mm_storeu_si128(static_cast<__m128i *>(at), value); }

void widen(const uint8_t *row, int blocks, int16_t *out) {
  for (const int16_t *end = out + blocks * kBlockPixels * 4; out != end; row += 8, out += 8) {
    store(out, _mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadu_si64(row)), kWideBits));
  }
}

void vertical(const int16_t *const *rows, const int16_t *weights, int taps, int blocks, int16_t *out) {
  // R G B X R' G' B' X' to R R' G G' B B' X X'
  const __m128i order = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  for (int half = 0; half < 2 * blocks; ++half, out += kBlockPixels / 4 * kPairStride) {
    const ptrdiff_t from = static_cast<ptrdiff_t>(half) * kBlockPixels * 2;
    __m128i sum0 = _mm_setzero_si128(), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (int tap = 0; tap < taps; ++tap) {
      const int16_t *source = rows[tap] + from;
      const __m128i weight = _mm_set1_epi16(weights[tap]);
      sum0 = _mm_add_epi16(sum0, _mm_mulhrs_epi16(load(source), weight));
      sum1 = _mm_add_epi16(sum1, _mm_mulhrs_epi16(load(source + 8), weight));
      sum2 = _mm_add_epi16(sum2, _mm_mulhrs_epi16(load(source + 16), weight));
      sum3 = _mm_add_epi16(sum3, _mm_mulhrs_epi16(load(source + 24), weight));
    }
    store(out, _mm_shuffle_epi8(sum0, order));
    store(out + kPairStride, _mm_shuffle_epi8(sum1, order));
    store(out + 2 * kPairStride, _mm_shuffle_epi8(sum2, order));
    store(out + 3 * kPairStride, _mm_shuffle_epi8(sum3, order));
  }
}

void horizontal(const int16_t *in, const int32_t *firsts, const uint32_t *weights, int pairs, int outputs,
                uint8_t *out, size_t out_stride) {
  const __m128i half = _mm_set1_epi32(1 << (kSumBits - 1));
  for (int x = 0; x < outputs; ++x, out += 4) {
    __m128i sum0 = half, sum1 = half, sum2 = half, sum3 = half;
    const int16_t *pair = in + static_cast<ptrdiff_t>(firsts[x]) * kPairStride;
    for (int tap = 0; tap < pairs; ++tap, pair += kPairStride, ++weights) {
      const __m128i weight = _mm_set1_epi32(static_cast<int32_t>(*weights));
      sum0 = _mm_add_epi32(sum0, _mm_madd_epi16(load(pair), weight));
      sum1 = _mm_add_epi32(sum1, _mm_madd_epi16(load(pair + kPairSamples), weight));
      sum2 = _mm_add_epi32(sum2, _mm_madd_epi16(load(pair + 2 * kPairSamples), weight));
      sum3 = _mm_add_epi32(sum3, _mm_madd_epi16(load(pair + 3 * kPairSamples), weight));
    }
    const __m128i bytes =
        _mm_packus_epi16(_mm_packs_epi32(_mm_srai_epi32(sum0, kSumBits), _mm_srai_epi32(sum1, kSumBits)),
                         _mm_packs_epi32(_mm_srai_epi32(sum2, kSumBits), _mm_srai_epi32(sum3, kSumBits)));
    _mm_storeu_si32(out, bytes);
    _mm_storeu_si32(out + out_stride, _mm_srli_si128(bytes, 4));
    _mm_storeu_si32(out + 2 * out_stride, _mm_srli_si128(bytes, 8));
    _mm_storeu_si32(out + 3 * out_stride, _mm_srli_si128(bytes, 12));
  }
}

// 16 pixels at a time: four vectors of 12 bytes become three full ones.
void pack(const uint8_t *rgbx, int pixels, uint8_t *rgb) {
  const __m128i drop = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  for (; pixels >= 16; pixels -= 16, rgbx += 64, rgb += 48) {
    const __m128i a = _mm_shuffle_epi8(load(rgbx), drop), b = _mm_shuffle_epi8(load(rgbx + 16), drop);
    const __m128i c = _mm_shuffle_epi8(load(rgbx + 32), drop), d = _mm_shuffle_epi8(load(rgbx + 48), drop);
    store(rgb, _mm_or_si128(a, _mm_slli_si128(b, 12)));
    store(rgb + 16, _mm_or_si128(_mm_srli_si128(b, 4), _mm_slli_si128(c, 8)));
    store(rgb + 32, _mm_or_si128(_mm_srli_si128(c, 8), _mm_slli_si128(d, 4)));
  }
  kPlainLevel.pack(rgbx, pixels, rgb);
}

}  // namespace

const Level kSse4Level = {widen, vertical, horizontal, pack};

}  // namespace feeder

#endif
