// crc32c: the Castagnoli polynomial, reflected, as RFC 3720 (iSCSI) and TFRecord have it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feeder {

// A way to compute it. All give the same.
struct Crc32c {
  const char *name;
  bool (*runs_here)();
  // The state after more bytes: ~0 before the first one, and the crc's complement behind the last one.
  uint32_t (*add)(uint32_t state, const uint8_t *data, size_t size);

  uint32_t operator()(const uint8_t *data, size_t size) const { return ~add(~uint32_t{0}, data, size); }
};

extern const Crc32c kPlainCrc32c;  // by tables, anywhere
#if defined(__x86_64__)
extern const Crc32c kInstructionCrc32c;  // by SSE4.2's instruction, 8 bytes at a time
extern const Crc32c kFoldingCrc32c;      // by AVX-512's products of polynomials, 256 bytes at a time
#elif defined(__aarch64__)
extern const Crc32c kInstructionCrc32c;  // by ARMv8's instruction
#endif

// All of this build, the fastest last.
constexpr const Crc32c *kCrc32c[] = {
    &kPlainCrc32c,
#if defined(__x86_64__) || defined(__aarch64__)
    &kInstructionCrc32c,
#endif
#if defined(__x86_64__)
    &kFoldingCrc32c,
#endif
};

// The fastest that this machine runs.
const Crc32c &best_crc32c();

// What TFRecord stores in place of a crc32c (tensorflow/core/lib/hash/crc32c.h).
constexpr uint32_t mask_crc(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xA282EAD8U; }

}  // namespace feeder
