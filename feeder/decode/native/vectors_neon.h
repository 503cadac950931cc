// Vectors of NEON; vectors_sse4.h says what they do.
#pragma once

#include <cstddef>
#include <cstdint>

#include <arm_neon.h>

namespace feeder {

struct Neon {
  using Vector = int16x8_t;
  static constexpr int kWords = 8, kRows = 16;

  static Vector load(const void *at) { return vreinterpretq_s16_u8(vld1q_u8(static_cast<const uint8_t *>(at))); }
  static void store(void *at, Vector value) { vst1q_u8(static_cast<uint8_t *>(at), vreinterpretq_u8_s16(value)); }
  static Vector load_apart(const int16_t *at, ptrdiff_t) { return load(at); }
  static void store_apart(uint8_t *const *rows, int x, Vector value) { store(rows[0] + x, value); }
  static void store_in_order(int16_t *at, Vector low, Vector high) {
    store(at, low);
    store(at + 8, high);
  }
  static void store_halves(uint8_t *first, uint8_t *second, Vector value) {
    vst1_u8(first, vget_low_u8(vreinterpretq_u8_s16(value)));
    vst1_u8(second, vget_high_u8(vreinterpretq_u8_s16(value)));
  }
  static Vector words16(int value) { return vdupq_n_s16(static_cast<int16_t>(value)); }
  static Vector words32(int32_t value) { return vreinterpretq_s16_s32(vdupq_n_s32(value)); }
  static Vector pairs(int low, int high) {
    return words32(static_cast<int32_t>(static_cast<uint32_t>(high) << 16 | (static_cast<uint32_t>(low) & 0xFFFFU)));
  }
  template <typename... Bytes>
  static Vector bytes(Bytes... each) {
    const uint8_t all[16] = {static_cast<uint8_t>(each)...};
    return load(all);
  }
  static bool all_zero(Vector a) { return vmaxvq_u32(vreinterpretq_u32_s16(a)) == 0; }

  static Vector add16(Vector a, Vector b) { return vaddq_s16(a, b); }
  static Vector sub16(Vector a, Vector b) { return vsubq_s16(a, b); }
  static Vector add32(Vector a, Vector b) { return from32(vaddq_s32(to32(a), to32(b))); }
  static Vector sub32(Vector a, Vector b) { return from32(vsubq_s32(to32(a), to32(b))); }
  static Vector adds16(Vector a, Vector b) { return vqaddq_s16(a, b); }
  static Vector subs16(Vector a, Vector b) { return vqsubq_s16(a, b); }
  static Vector mullo(Vector a, Vector b) { return vmulq_s16(a, b); }
  static Vector madd(Vector a, Vector b) {
    return from32(vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)));
  }
  // Differs from other machines where both are -0x8000, which no weight is.
  static Vector mulhrs(Vector a, Vector b) { return vqrdmulhq_s16(a, b); }
  static Vector either(Vector a, Vector b) { return vorrq_s16(a, b); }
  static Vector flip_bits(Vector a, Vector b) { return veorq_s16(a, b); }
  static Vector to_high(Vector a) { return from32(vshlq_n_s32(to32(a), 16)); }
  template <int bits>
  static Vector up16(Vector a) { return vshlq_n_s16(a, bits); }
  template <int bits>
  static Vector down32(Vector a) { return from32(vshrq_n_s32(to32(a), bits)); }
  static Vector pack32(Vector a, Vector b) { return vqmovn_high_s32(vqmovn_s32(to32(a)), to32(b)); }
  static Vector pack16(Vector a, Vector b) { return vreinterpretq_s16_s8(vqmovn_high_s16(vqmovn_s16(a), b)); }
  static Vector low8(Vector a, Vector b) { return from8(vzip1q_u8(to8(a), to8(b))); }
  static Vector high8(Vector a, Vector b) { return from8(vzip2q_u8(to8(a), to8(b))); }
  static Vector low16(Vector a, Vector b) { return vzip1q_s16(a, b); }
  static Vector high16(Vector a, Vector b) { return vzip2q_s16(a, b); }
  static Vector low32(Vector a, Vector b) { return from32(vzip1q_s32(to32(a), to32(b))); }
  static Vector high32(Vector a, Vector b) { return from32(vzip2q_s32(to32(a), to32(b))); }
  static Vector low64(Vector a, Vector b) { return from64(vzip1q_s64(to64(a), to64(b))); }
  static Vector high64(Vector a, Vector b) { return from64(vzip2q_s64(to64(a), to64(b))); }
  static Vector shuffle(Vector a, Vector order) { return from8(vqtbl1q_u8(to8(a), to8(order))); }

 private:
  static int32x4_t to32(Vector a) { return vreinterpretq_s32_s16(a); }
  static Vector from32(int32x4_t a) { return vreinterpretq_s16_s32(a); }
  static uint8x16_t to8(Vector a) { return vreinterpretq_u8_s16(a); }
  static Vector from8(uint8x16_t a) { return vreinterpretq_s16_u8(a); }
  static int64x2_t to64(Vector a) { return vreinterpretq_s64_s16(a); }
  static Vector from64(int64x2_t a) { return vreinterpretq_s16_s64(a); }
};

}  // namespace feeder
