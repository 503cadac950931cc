// crc32c by AVX-512's carry-less products; this file alone is compiled for them.
//
// Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009): modulo the
// polynomial, 128 bits that D bits follow are as good as the sum of two products of 64 of them and 32 of a power of x,
// D bits further back.

#if defined(__x86_64__)

#include <immintrin.h>

#include "crc32c.h"
#include "crc32c_powers.h"

namespace feeder {

namespace {

constexpr size_t kVectors = 4, kVectorBytes = 64, kBytes = kVectors * kVectorBytes;

bool runs_here() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq") &&
         __builtin_cpu_supports("sse4.2");
}

inline __m512i load(const uint8_t *at) { return _mm512_loadu_si512(at); }

uint32_t add(uint32_t state, const uint8_t *data, size_t size) {
  if (size < 2 * kBytes) return kInstructionCrc32c.add(state, data, size);
  // A product of 64 bits and 32, lowest power first, is 33 powers too high. The first half of 128 bits has 64 more.
  constexpr size_t kBits = 8 * kBytes;
  constexpr uint32_t kFirst = power_of_x(kBits + 64 - 33), kSecond = power_of_x(kBits - 33);
  const __m512i powers = _mm512_broadcast_i32x4(_mm_set_epi64x(kSecond, kFirst));
  __m512i sums[kVectors];
  for (size_t i = 0; i < kVectors; ++i) sums[i] = load(data + i * kVectorBytes);
  sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  for (data += kBytes, size -= kBytes; size >= kBytes; data += kBytes, size -= kBytes) {
    for (size_t i = 0; i < kVectors; ++i) {
      const __m512i first = _mm512_clmulepi64_epi128(sums[i], powers, 0x00);
      const __m512i second = _mm512_clmulepi64_epi128(sums[i], powers, 0x11);
      sums[i] = _mm512_ternarylogic_epi64(first, second, load(data + i * kVectorBytes), 0x96);  // xor of three
    }
  }
  alignas(kVectorBytes) uint8_t folded[kBytes];
  for (size_t i = 0; i < kVectors; ++i) _mm512_store_si512(folded + i * kVectorBytes, sums[i]);
  return kInstructionCrc32c.add(kInstructionCrc32c.add(0, folded, kBytes), data, size);
}

}  // namespace

const Crc32c kFoldingCrc32c = {"folding", runs_here, add};

}  // namespace feeder

#endif
