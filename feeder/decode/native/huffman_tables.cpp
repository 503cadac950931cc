// The look-up tables, built by ranges of codes.

#include <algorithm>

#include "huffman_entries.h"

namespace feeder {
namespace {

// Entries of all data that begins with one code: `free` more bits of the index follow it.
uint32_t *fill_code(uint32_t *entry, uint32_t symbol, uint32_t length, uint32_t free, bool dc) {
  const uint32_t size = symbol & 15, run = dc ? 0 : symbol >> 4;
  if (size == 0) {
    const bool zeros = dc || run == 15;
    std::fill(entry, entry + (size_t{1} << free), zeros ? make_entry(0, run + 1, length) : kUnusual | length);
    return entry + (size_t{1} << free);
  }
  if (size > free) {
    std::fill(entry, entry + (size_t{1} << free), symbol << 24 | length << 16 | kUnusual);
    return entry + (size_t{1} << free);
  }
  const uint32_t repeats = 1U << (free - size);
  const int32_t half = 1 << (size - 1);
  const uint32_t step = 1U << 16;
  uint32_t value = make_entry(1 - 2 * half, run + 1, length + size);
  for (int part = 0; part < 2; ++part) {
    for (int32_t i = 0; i < half; ++i, value += step) {
      for (uint32_t k = 0; k < repeats; ++k) *entry++ = value;
    }
    value = make_entry(half, run + 1, length + size);
  }
  return entry;
}

// Fills 1 << bits entries of one symbol each, and *codes.
bool build_singles(const CodeLengths &lengths, uint32_t bits, bool dc, uint32_t *entries, LongCodes *codes) {
  uint32_t code = 0;
  int32_t index = 0;
  uint32_t *entry = entries;
  codes->symbols = lengths.symbols;
  codes->limits[0] = 0;
  for (uint32_t length = 1; length <= 16; ++length) {
    const int32_t count = lengths.counts[length - 1];
    codes->offsets[length] = index - static_cast<int32_t>(code);
    for (int32_t i = 0; i < count; ++i, ++index, ++code) {
      const uint32_t symbol = lengths.symbols[index];
      if (dc && symbol > 15) return false;
      // A code too many, or of ones only.
      if (code + 1 >= 1U << length) return false;
      if (length <= bits) entry = fill_code(entry, symbol, length, bits - length, dc);
    }
    codes->limits[length] = code << (16 - length);
    code <<= 1;
  }
  std::fill(entry, entries + (size_t{1} << bits), kUnusual);
  return true;
}

}  // namespace

uint32_t long_entry(const LongCodes &codes, uint32_t shorter, uint64_t window, bool dc) noexcept {
  const auto code = static_cast<uint32_t>(window >> 48);
  uint32_t length = shorter + 1;
  while (length <= 16 && code >= codes.limits[length]) ++length;
  if (length > 16) return kBad;
  const uint32_t symbol = codes.symbols[static_cast<int32_t>(code >> (16 - length)) + codes.offsets[length]];
  if ((symbol & 15) != 0) return value_entry(symbol, length, window, dc);
  if (dc) return make_entry(0, 1, length);
  return symbol >> 4 == 15 ? make_entry(0, 16, length) : kUnusual | length;
}

bool DcTable::build(const CodeLengths &lengths) noexcept {
  return build_singles(lengths, kDcBits, true, entries, &codes);
}

bool AcTable::build(const CodeLengths &lengths) noexcept {
  constexpr uint32_t kSize = 1 << kAcBits;
  uint32_t singles[kSize];
  if (!build_singles(lengths, kAcBits, false, singles, &codes)) return false;
  uint64_t *entry = entries;
  for (uint32_t i = 0; i < kSize;) {
    const uint32_t first = singles[i], taken = first & 0xFF;
    if ((first & kUnusual) != 0) {
      *entry++ = widen_unusual(first);
      ++i;
      continue;
    }
    // All that begins with the first symbol: the second counts when all of its bits are there.
    const uint64_t alone = widen(first);
    for (uint32_t behind = 0; behind < kSize; behind += 1U << taken) {
      const uint32_t second = singles[behind];
      const bool whole = (second & 0xFF) - 1 < kAcBits - taken;
      *entry++ = alone + (whole ? widen_second(second) : 0);
    }
    i += kSize >> taken;
  }
  return true;
}

}  // namespace feeder
