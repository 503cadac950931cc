// What a crc32c becomes where zero bytes follow: its product with a power of x. Computed by the compiler.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feeder {

// The product of two polynomials modulo that of crc32c. Bit 31 is the coefficient of x^0.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int bit = 0; bit < 32; ++bit) {
    product = product >> 1 ^ ((product & 1) != 0 ? 0x82F63B78U : 0);
    if ((b >> bit & 1) != 0) product ^= a;
  }
  return product;
}

constexpr uint32_t power_of_x(size_t exponent) {
  uint32_t power = 1U << 31, square = 1U << 30;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) power = multiply(power, square);
    square = multiply(square, square);
  }
  return power;
}

// The product with x^(8 * bytes) by look-up: entry[k][v] is that of a state whose byte k is v, and the others zero.
struct Shift {
  uint32_t entry[4][256];

  constexpr explicit Shift(size_t bytes) : entry{} {
    const uint32_t power = power_of_x(8 * bytes);
    for (int k = 0; k < 4; ++k) {
      for (uint32_t v = 0; v < 256; ++v) entry[k][v] = multiply(power, v << 8 * k);
    }
  }

  constexpr uint32_t operator()(uint32_t state) const {
    return entry[0][state & 0xFF] ^ entry[1][state >> 8 & 0xFF] ^ entry[2][state >> 16 & 0xFF] ^ entry[3][state >> 24];
  }
};

}  // namespace feeder
