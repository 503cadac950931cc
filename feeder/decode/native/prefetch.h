// Memory that is far away.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feeder {

// Has bytes that will be read, or written, fetched into the cache while others are at work; at worst in vain.
inline void prefetch(const uint8_t *bytes, size_t count) {
  for (size_t at = 0; at < count; at += 64) __builtin_prefetch(bytes + at);
}

}  // namespace feeder
