// crc32c by the instruction that SSE4.2 and ARMv8 have for it; this file alone is compiled for them.

#if defined(__x86_64__) || defined(__aarch64__)

#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#else
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

#include "crc32c.h"
#include "crc32c_powers.h"

namespace feeder {

namespace {

#if defined(__x86_64__)
bool runs_here() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("sse4.2") != 0;
}
inline uint64_t add_8(uint64_t state, uint64_t word) { return _mm_crc32_u64(state, word); }
inline uint32_t add_1(uint32_t state, uint8_t byte) { return _mm_crc32_u8(state, byte); }
#else
bool runs_here() {
  constexpr unsigned long kCrc32 = 1UL << 7;  // HWCAP_CRC32 of <asm/hwcap.h>
  return (getauxval(AT_HWCAP) & kCrc32) != 0;
}
inline uint64_t add_8(uint64_t state, uint64_t word) { return __crc32cd(static_cast<uint32_t>(state), word); }
inline uint32_t add_1(uint32_t state, uint8_t byte) { return __crc32cb(state, byte); }
#endif

inline uint64_t load(const uint8_t *at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// The instruction takes three cycles, but one can begin in each: three neighbouring stripes at a time, joined after.
template <size_t Stripe>
uint32_t add_stripes(uint32_t state, const uint8_t **data, size_t *size) {
  static constexpr Shift kOneStripe(Stripe);
  for (; *size >= 3 * Stripe; *data += 3 * Stripe, *size -= 3 * Stripe) {
    const uint8_t *at = *data;
    uint64_t a = state, b = 0, c = 0;
    for (const uint8_t *stop = at + Stripe; at != stop; at += 8) {
      a = add_8(a, load(at));
      b = add_8(b, load(at + Stripe));
      c = add_8(c, load(at + 2 * Stripe));
    }
    state = kOneStripe(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
    state = kOneStripe(state) ^ static_cast<uint32_t>(c);
  }
  return state;
}

uint32_t add(uint32_t state, const uint8_t *data, size_t size) {
  // Long stripes cost little to join, short ones leave few bytes over.
  state = add_stripes<4096>(state, &data, &size);
  state = add_stripes<256>(state, &data, &size);
  for (; size >= 8; data += 8, size -= 8) state = static_cast<uint32_t>(add_8(state, load(data)));
  for (; size != 0; ++data, --size) state = add_1(state, *data);
  return state;
}

}  // namespace

const Crc32c kInstructionCrc32c = {"instruction", runs_here, add};

}  // namespace feeder

#endif
