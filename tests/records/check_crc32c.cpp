// Prints the crc32c of the bytes 0, 7, 14, ... (modulo 256) for some sizes, by every way that this machine has; for
// tests/records/test_scan.py, which runs it for other processors, too.

#include <cstdio>
#include <vector>

#include "crc32c.h"

int main() {
  for (const feeder::Crc32c *way : feeder::kCrc32c) {
    if (!way->runs_here()) continue;
    std::printf("%s", way->name);
    for (const size_t size : {0, 1, 7, 8, 9, 767, 768, 769, 5000, 12288, 100001}) {
      std::vector<uint8_t> bytes(size + 1);  // one off its alignment
      for (size_t i = 0; i < size; ++i) bytes[i + 1] = static_cast<uint8_t>(7 * i);
      std::printf(" %08x", (*way)(bytes.data() + 1, size));
    }
    std::printf("\n");
  }
}
