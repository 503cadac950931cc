// Vectors of AVX2, for files that are compiled with it; vectors_sse4.h says what they do.
#pragma once

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

namespace feeder {

struct Avx2 {
  using Vector = __m256i;
  static constexpr int kWords = 16, kRows = 16;

  static Vector load(const void *at) { return _mm256_loadu_si256(static_cast<const __m256i *>(at)); }
  static void store(void *at, Vector value) { _mm256_storeu_si256(static_cast<__m256i *>(at), value); }
  static Vector load_apart(const int16_t *at, ptrdiff_t distance) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at))),
                                   _mm_loadu_si128(reinterpret_cast<const __m128i *>(at + distance)), 1);
  }
  static void store_apart(uint8_t *const *rows, int x, Vector value) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(rows[0] + x), _mm256_castsi256_si128(value));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(rows[8] + x), _mm256_extracti128_si256(value, 1));
  }
  static void store_in_order(int16_t *at, Vector low, Vector high) {
    store(at, _mm256_permute2x128_si256(low, high, 0x20));
    store(at + 16, _mm256_permute2x128_si256(low, high, 0x31));
  }
  static Vector words16(int value) { return _mm256_set1_epi16(static_cast<int16_t>(value)); }
  static Vector words32(int32_t value) { return _mm256_set1_epi32(value); }
  static Vector pairs(int low, int high) {
    return words32(static_cast<int32_t>(static_cast<uint32_t>(high) << 16 | (static_cast<uint32_t>(low) & 0xFFFFU)));
  }
  template <typename... Bytes>
  static Vector bytes(Bytes... each) {
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(static_cast<char>(each)...));
  }

  static Vector add16(Vector a, Vector b) { return _mm256_add_epi16(a, b); }
  static Vector sub16(Vector a, Vector b) { return _mm256_sub_epi16(a, b); }
  static Vector add32(Vector a, Vector b) { return _mm256_add_epi32(a, b); }
  static Vector sub32(Vector a, Vector b) { return _mm256_sub_epi32(a, b); }
  static Vector adds16(Vector a, Vector b) { return _mm256_adds_epi16(a, b); }
  static Vector subs16(Vector a, Vector b) { return _mm256_subs_epi16(a, b); }
  static Vector madd(Vector a, Vector b) { return _mm256_madd_epi16(a, b); }
  static Vector mulhrs(Vector a, Vector b) { return _mm256_mulhrs_epi16(a, b); }
  static Vector flip_bits(Vector a, Vector b) { return _mm256_xor_si256(a, b); }
  static Vector to_high(Vector a) { return _mm256_slli_epi32(a, 16); }
  template <int bits>
  static Vector up16(Vector a) { return _mm256_slli_epi16(a, bits); }
  template <int bits>
  static Vector down32(Vector a) { return _mm256_srai_epi32(a, bits); }
  static Vector pack32(Vector a, Vector b) { return _mm256_packs_epi32(a, b); }
  static Vector pack16(Vector a, Vector b) { return _mm256_packs_epi16(a, b); }
  static Vector low8(Vector a, Vector b) { return _mm256_unpacklo_epi8(a, b); }
  static Vector high8(Vector a, Vector b) { return _mm256_unpackhi_epi8(a, b); }
  static Vector low16(Vector a, Vector b) { return _mm256_unpacklo_epi16(a, b); }
  static Vector high16(Vector a, Vector b) { return _mm256_unpackhi_epi16(a, b); }
  static Vector low32(Vector a, Vector b) { return _mm256_unpacklo_epi32(a, b); }
  static Vector high32(Vector a, Vector b) { return _mm256_unpackhi_epi32(a, b); }
  static Vector low64(Vector a, Vector b) { return _mm256_unpacklo_epi64(a, b); }
  static Vector high64(Vector a, Vector b) { return _mm256_unpackhi_epi64(a, b); }
  static Vector shuffle(Vector a, Vector order) { return _mm256_shuffle_epi8(a, order); }
};

}  // namespace feeder
