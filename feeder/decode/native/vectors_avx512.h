// Vectors of AVX-512BW, for files that are compiled with it; vectors_sse4.h says what they do. Only what
// resample_vectors.h needs: a block of the inverse DCT fills no more than AVX2 has.
#pragma once

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

namespace feeder {

struct Avx512 {
  using Vector = __m512i;
  static constexpr int kWords = 32, kRows = 32;

  static Vector load(const void *at) { return _mm512_loadu_si512(at); }
  static void store(void *at, Vector value) { _mm512_storeu_si512(at, value); }
  static Vector load_apart(const int16_t *at, ptrdiff_t distance) {
    const auto lane = [=](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(at + i * distance)); };
    Vector lanes = _mm512_castsi128_si512(lane(0));
    lanes = _mm512_inserti32x4(lanes, lane(1), 1);
    lanes = _mm512_inserti32x4(lanes, lane(2), 2);
    return _mm512_inserti32x4(lanes, lane(3), 3);
  }
  static void store_apart(uint8_t *const *rows, int x, Vector value) {
    const auto to = [=](int row) { return reinterpret_cast<__m128i *>(rows[row] + x); };
    _mm_storeu_si128(to(0), _mm512_castsi512_si128(value));
    _mm_storeu_si128(to(8), _mm512_extracti32x4_epi32(value, 1));
    _mm_storeu_si128(to(16), _mm512_extracti32x4_epi32(value, 2));
    _mm_storeu_si128(to(24), _mm512_extracti32x4_epi32(value, 3));
  }
  static void store_in_order(int16_t *at, Vector low, Vector high) {
    store(at, _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high));
    store(at + 32, _mm512_permutex2var_epi64(low, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), high));
  }
  static Vector words16(int value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }
  static Vector words32(int32_t value) { return _mm512_set1_epi32(value); }
  static Vector pairs(int low, int high) {
    return words32(static_cast<int32_t>(static_cast<uint32_t>(high) << 16 | (static_cast<uint32_t>(low) & 0xFFFFU)));
  }

  static Vector add16(Vector a, Vector b) { return _mm512_add_epi16(a, b); }
  static Vector add32(Vector a, Vector b) { return _mm512_add_epi32(a, b); }
  static Vector adds16(Vector a, Vector b) { return _mm512_adds_epi16(a, b); }
  static Vector subs16(Vector a, Vector b) { return _mm512_subs_epi16(a, b); }
  static Vector madd(Vector a, Vector b) { return _mm512_madd_epi16(a, b); }
  static Vector mulhrs(Vector a, Vector b) { return _mm512_mulhrs_epi16(a, b); }
  static Vector flip_bits(Vector a, Vector b) { return _mm512_xor_si512(a, b); }
  template <int bits>
  static Vector up16(Vector a) { return _mm512_slli_epi16(a, bits); }
  template <int bits>
  static Vector down32(Vector a) { return _mm512_srai_epi32(a, bits); }
  static Vector pack32(Vector a, Vector b) { return _mm512_packs_epi32(a, b); }
  static Vector pack16(Vector a, Vector b) { return _mm512_packs_epi16(a, b); }
  static Vector low8(Vector a, Vector b) { return _mm512_unpacklo_epi8(a, b); }
  static Vector high8(Vector a, Vector b) { return _mm512_unpackhi_epi8(a, b); }
  static Vector low16(Vector a, Vector b) { return _mm512_unpacklo_epi16(a, b); }
  static Vector high16(Vector a, Vector b) { return _mm512_unpackhi_epi16(a, b); }
  static Vector low32(Vector a, Vector b) { return _mm512_unpacklo_epi32(a, b); }
  static Vector high32(Vector a, Vector b) { return _mm512_unpackhi_epi32(a, b); }
  static Vector low64(Vector a, Vector b) { return _mm512_unpacklo_epi64(a, b); }
  static Vector high64(Vector a, Vector b) { return _mm512_unpackhi_epi64(a, b); }
};

}  // namespace feeder
