// What all targets share: an input of the targets for JPEGs is a file and, behind it, kChoices bytes that choose how it
// is decoded. A JPEG may be followed by anything, so that such inputs are still images for every viewer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace fuzz {

using Bytes = std::vector<uint8_t>;
using Random = std::minstd_rand;

constexpr size_t kChoices = 32;

// In [0, bound); 0 where there is nothing to choose.
inline size_t below(Random &random, size_t bound) { return bound == 0 ? 0 : static_cast<size_t>(random()) % bound; }

// Closed.
inline int draw(Random &random, int low, int high) {
  return low + static_cast<int>(below(random, static_cast<size_t>(high - low + 1)));
}

// Once in `times`.
inline bool chance(Random &random, size_t times) { return below(random, times) == 0; }

// An input taken apart. The image is a copy of exactly its size, so that AddressSanitizer finds a read behind it.
struct Input {
  Bytes image;
  uint8_t choices[kChoices] = {};

  Input(const uint8_t *data, size_t size) : image(data, data + (size < kChoices ? size : size - kChoices)) {
    for (size_t i = image.size(); i < size; ++i) choices[i - image.size()] = data[i];
  }
};

[[noreturn]] inline void finding(const char *what) {
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

}  // namespace fuzz
