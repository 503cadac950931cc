#include "crc32c.h"

#include "crc32c_powers.h"

namespace feeder {

namespace {

constexpr Shift kOneByte(1), kFourBytes(4);

bool anywhere() { return true; }

uint32_t add(uint32_t state, const uint8_t *data, size_t size) {
  for (; size >= 4; data += 4, size -= 4) {
    const uint32_t word = data[0] | static_cast<uint32_t>(data[1]) << 8 | static_cast<uint32_t>(data[2]) << 16 |
                          static_cast<uint32_t>(data[3]) << 24;
    state = kFourBytes(state ^ word);
  }
  for (; size != 0; ++data, --size) state = kOneByte(state ^ *data);
  return state;
}

}  // namespace

const Crc32c kPlainCrc32c = {"plain", anywhere, add};

const Crc32c &best_crc32c() {
  const Crc32c *best = &kPlainCrc32c;
  for (const Crc32c *one : kCrc32c) {
    if (one->runs_here()) best = one;
  }
  return *best;
}

}  // namespace feeder
