// Entries of the look-up tables, and what a table cannot tell. For huffman.cpp and huffman_tables.cpp alone.
#pragma once

#include <cstdint>

#include "huffman.h"

namespace feeder {

// Entries with one symbol are built first, in 32 bits:
//   bits 0 to 7    bits to take
//   bits 8 to 14   zeros and one: how far an AC coefficient is from the one before
//   bit 15         with bits to take: the end of the block; without: the code or its value is too long for the table
//   bits 16 to 31  value; if only that is too long: length of the code in bits 16 to 23, symbol behind
constexpr uint32_t kUnusual = 0x8000;
constexpr uint32_t kBad = 0xFFFF0000U | kUnusual;

constexpr uint32_t make_entry(int32_t value, uint32_t advance, uint32_t length) {
  return static_cast<uint32_t>(value) << 16 | advance << 8 | length;
}

// The value whose `size` extra bits are `bits`.
constexpr int32_t extend(uint32_t bits, uint32_t size) {
  const auto value = static_cast<int32_t>(bits);
  const int32_t negative = (value - (1 << size >> 1)) >> 31;  // all ones; no branch, which would be a coin toss
  return value + (negative & (1 - (1 << size)));
}

// The entry of one symbol whose value has extra bits, behind a code of known length.
inline uint32_t value_entry(uint32_t symbol, uint32_t length, uint64_t window, bool dc) {
  const uint32_t size = symbol & 15, run = dc ? 0 : symbol >> 4;
  return make_entry(extend(static_cast<uint32_t>(window << length >> (64 - size)), size), run + 1, length + size);
}

// The entry of one symbol, for a code that is longer than `shorter` bits; kBad where there is none.
uint32_t long_entry(const LongCodes &codes, uint32_t shorter, uint64_t window, bool dc) noexcept;

// The entry of one symbol, and what a second symbol adds to it.
constexpr uint64_t widen(uint32_t first) {
  return static_cast<uint64_t>(first & 0xFFFF0000U) << 32 | (first & 0xFF) << 24 | (first & 0xFFFF);
}
constexpr uint64_t widen_second(uint32_t second) {
  return static_cast<uint64_t>(second >> 16) << 32 | (second << 8 & 0x7F0000) | (second & 0xFFFF);
}

// The entry of an end of block, or of a long code, alone.
constexpr uint64_t widen_unusual(uint32_t entry) {
  return static_cast<uint64_t>(entry >> 16) << 32 | 0xFF0000 | (entry & 0xFFFF);
}

// The entry of one symbol that the table cannot tell; lengths up to 31. known is what the table says: the length of the
// code and the symbol, or 0.
template <int bits>
inline uint32_t find_entry(uint32_t known, const LongCodes &codes, uint64_t window, bool dc) {
  return known != 0 ? value_entry(known >> 8, known & 0xFF, window, dc) : long_entry(codes, bits, window, dc);
}

}  // namespace feeder
