// Vectors of SSE4.1, for files that are compiled with it. The names are those of every X in planes_vectors.h and
// resample_vectors.h: a vector holds kWords words of 16 bits, and what crosses words stays within lanes of 128 bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include <smmintrin.h>

namespace feeder {

struct Sse4 {
  using Vector = __m128i;
  static constexpr int kWords = 8, kRows = 16;

  static Vector load(const void *at) { return _mm_loadu_si128(static_cast<const __m128i *>(at)); }
  static void store(void *at, Vector value) { _mm_storeu_si128(static_cast<__m128i *>(at), value); }
  // The words of one lane at `at`, those of the next one `distance` words further.
  static Vector load_apart(const int16_t *at, ptrdiff_t) { return load(at); }
  // The first lane from byte x of the first row, the next one of the row eight further.
  static void store_apart(uint8_t *const *rows, int x, Vector value) { store(rows[0] + x, value); }
  // The words that low8 and high8 made of the bytes of one vector, in the order of these.
  static void store_in_order(int16_t *at, Vector low, Vector high) {
    store(at, low);
    store(at + 8, high);
  }
  // The first 8 bytes, and the other 8.
  static void store_halves(uint8_t *first, uint8_t *second, Vector value) {
    _mm_storeu_si64(first, value);
    _mm_storeu_si64(second, _mm_unpackhi_epi64(value, value));
  }
  static Vector words16(int value) { return _mm_set1_epi16(static_cast<int16_t>(value)); }
  static Vector words32(int32_t value) { return _mm_set1_epi32(value); }
  static Vector pairs(int low, int high) {
    return words32(static_cast<int32_t>(static_cast<uint32_t>(high) << 16 | (static_cast<uint32_t>(low) & 0xFFFFU)));
  }
  template <typename... Bytes>
  static Vector bytes(Bytes... each) { return _mm_setr_epi8(static_cast<char>(each)...); }
  static bool all_zero(Vector a) { return _mm_testz_si128(a, a) != 0; }

  static Vector add16(Vector a, Vector b) { return _mm_add_epi16(a, b); }
  static Vector sub16(Vector a, Vector b) { return _mm_sub_epi16(a, b); }
  static Vector add32(Vector a, Vector b) { return _mm_add_epi32(a, b); }
  static Vector sub32(Vector a, Vector b) { return _mm_sub_epi32(a, b); }
  // Saturating.
  static Vector adds16(Vector a, Vector b) { return _mm_adds_epi16(a, b); }
  static Vector subs16(Vector a, Vector b) { return _mm_subs_epi16(a, b); }
  static Vector mullo(Vector a, Vector b) { return _mm_mullo_epi16(a, b); }
  // Sums of the products of neighbours.
  static Vector madd(Vector a, Vector b) { return _mm_madd_epi16(a, b); }
  // (a * b + 0x4000) >> 15.
  static Vector mulhrs(Vector a, Vector b) { return _mm_mulhrs_epi16(a, b); }
  static Vector either(Vector a, Vector b) { return _mm_or_si128(a, b); }
  static Vector flip_bits(Vector a, Vector b) { return _mm_xor_si128(a, b); }
  static Vector to_high(Vector a) { return _mm_slli_epi32(a, 16); }
  template <int bits>
  static Vector up16(Vector a) { return _mm_slli_epi16(a, bits); }
  template <int bits>
  static Vector down32(Vector a) { return _mm_srai_epi32(a, bits); }
  // To half the bits with signed saturation.
  static Vector pack32(Vector a, Vector b) { return _mm_packs_epi32(a, b); }
  static Vector pack16(Vector a, Vector b) { return _mm_packs_epi16(a, b); }
  // Elements of the low or high halves of a and b in turn.
  static Vector low8(Vector a, Vector b) { return _mm_unpacklo_epi8(a, b); }
  static Vector high8(Vector a, Vector b) { return _mm_unpackhi_epi8(a, b); }
  static Vector low16(Vector a, Vector b) { return _mm_unpacklo_epi16(a, b); }
  static Vector high16(Vector a, Vector b) { return _mm_unpackhi_epi16(a, b); }
  static Vector low32(Vector a, Vector b) { return _mm_unpacklo_epi32(a, b); }
  static Vector high32(Vector a, Vector b) { return _mm_unpackhi_epi32(a, b); }
  static Vector low64(Vector a, Vector b) { return _mm_unpacklo_epi64(a, b); }
  static Vector high64(Vector a, Vector b) { return _mm_unpackhi_epi64(a, b); }
  static Vector shuffle(Vector a, Vector order) { return _mm_shuffle_epi8(a, order); }
};

}  // namespace feeder
