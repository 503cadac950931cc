#include "huffman.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace feeder {
namespace {

constexpr uint32_t kUnusual = 0x8000;
constexpr uint32_t kBad = 0xFFFF0000U | kUnusual;  // also the entry of codes that are too long for the table
constexpr uint32_t kEndValue = 1;                  // entry >> 15 of an end of block: unusual, and no value

// Bits 8 to 15 of the running sum of entries: kBias + position, so that bit 15 is set behind position 62, after which
// the block has no end code, and by every unusual entry.
constexpr uint32_t kBias = 65;
constexpr uint32_t kLastPosition = 63;

constexpr uint32_t make_entry(int32_t value, uint32_t advance, uint32_t length) {
  return static_cast<uint32_t>(value) << 16 | advance << 8 | length;
}

// The value whose `size` extra bits are `bits`.
constexpr int32_t extend(uint32_t bits, uint32_t size) {
  const auto value = static_cast<int32_t>(bits);
  return value >= 1 << size >> 1 ? value : value - (1 << size) + 1;
}

uint64_t load_big_endian(const uint8_t *at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  value = __builtin_bswap64(value);
#endif
  return value;
}

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

// The entry for data whose code or value is too long for the table; lengths up to 31.
template <typename Table>
[[gnu::noinline, gnu::cold]] uint32_t long_entry(const Table &table, uint64_t window, bool dc) {
  const auto code = static_cast<uint32_t>(window >> 48);
  uint32_t length = 1;
  while (length <= 16 && code >= table.limits[length]) ++length;
  if (length > 16) return kBad;
  const uint32_t symbol = table.symbols[static_cast<int32_t>(code >> (16 - length)) + table.offsets[length]];
  const uint32_t size = symbol & 15, run = dc ? 0 : symbol >> 4;
  if (size == 0) return dc || run == 15 ? make_entry(0, run + 1, length) : kUnusual | length;
  const auto bits = static_cast<uint32_t>(window << length >> (64 - size));
  return make_entry(extend(bits, size), run + 1, length + size);
}

// The registers of a reader, while they are in registers.
struct Bits {
  uint64_t window;
  const uint8_t *next;

  // Fills up the window, of which `missing` bits are taken, 1 to 63; afterwards missing & 7 are.
  [[gnu::always_inline]] void refill(uint32_t missing) {
    window |= load_big_endian(next) >> (-missing & 63);
    next += missing >> 3;
  }
};

// Decodes one block. `sum` carries the missing bits in and out, in its low byte.
template <bool store>
[[gnu::always_inline]] inline bool decode_block(Bits *registers, uint32_t *missing, const DcTable &dc,
                                                const AcTable &ac, uint32_t *prediction, int16_t *block,
                                                uint8_t *last) {
  constexpr int kDcShift = 64 - kDcBits, kAcShift = 64 - kAcBits;
  Bits bits = *registers;
  uint32_t sum = *missing;
  bits.refill(sum);
  sum &= 7;
  uint32_t entry = dc.entries[bits.window >> kDcShift];
  if (__builtin_expect((entry & kUnusual) != 0, 0)) {
    entry = long_entry(dc, bits.window, true);
    if (entry == kBad) return false;
    bits.window <<= entry & 63;
    sum += entry & 63;
    bits.refill(sum);
    sum &= 7;
  } else {
    bits.window <<= entry & 63;
    sum += entry & 63;
  }
  *prediction += static_cast<uint32_t>(static_cast<int32_t>(entry) >> 16);
  if (store) block[0] = static_cast<int16_t>(*prediction);
  sum |= kBias << 8;

  // Takes one symbol; true when there is more to it.
  const auto step = [&]() __attribute__((always_inline)) {
    entry = ac.entries[bits.window >> kAcShift];
    sum += entry;
    if (static_cast<int16_t>(sum) < 0) return true;
    bits.window <<= entry & 63;
    if (store) block[kNaturalOrder[((sum >> 8) & 0xFF) - kBias]] = static_cast<int16_t>(entry >> 16);
    return false;
  };
  for (;;) {
    if (step() || step() || step() || step()) {
      if (entry >> 15 == kEndValue) break;
      if ((entry & kUnusual) != 0) {
        sum -= entry;
        // The window may be full, which a shift cannot say at once.
        bits.window |= load_big_endian(bits.next) >> 1 >> (63 - (sum & 63));
        bits.next += (sum & 63) >> 3;
        sum &= 0xFF07;
        entry = long_entry(ac, bits.window, false);
        if (entry == kBad) return false;
        sum += entry;
        if (entry >> 15 == kEndValue) break;
        if (static_cast<int16_t>(sum) >= 0) {
          bits.window <<= entry & 63;
          if (store) block[kNaturalOrder[((sum >> 8) & 0xFF) - kBias]] = static_cast<int16_t>(entry >> 16);
          bits.refill(sum & 0xFF);
          sum &= 0xFF07;
          continue;
        }
      }
      if (((sum >> 8) & 0xFF) != kBias + kLastPosition) return false;
      if (store) block[kLastPosition] = static_cast<int16_t>(entry >> 16);
      break;
    }
    bits.refill(sum & 0xFF);
    sum &= 0xFF07;
  }
  bits.window <<= entry & 63;
  if (store) {
    const uint32_t position = (sum >> 8) & 0xFF;
    *last = static_cast<uint8_t>(entry >> 15 == kEndValue ? position - 128 - kBias : kLastPosition);
  }
  *registers = bits;
  *missing = sum & 0xFF;
  return true;
}

template <bool store>
inline bool decode(EntropyReader *reader, const McuPlan &plan, int mcus, int16_t *coefficients, uint8_t *lasts) {
  Bits bits = {reader->window, reader->next};
  uint32_t missing = reader->missing;
  const uint8_t *const guard = reader->end + 8;
  const int blocks = plan.blocks;
  for (int mcu = 0; mcu < mcus; ++mcu) {
    for (int i = 0; i < blocks; ++i) {
      const McuPlan::Block &block = plan.block[i];
      if (!decode_block<store>(&bits, &missing, *block.dc, *block.ac, &reader->predictions[block.component],
                               coefficients + i * kBlockSamples, lasts + i)) {
        return false;
      }
    }
    if (bits.next > guard) return false;
  }
  reader->window = bits.window;
  reader->next = bits.next;
  reader->missing = missing;
  return true;
}

}  // namespace

template <int bits>
bool CodeTable<bits>::build(const CodeLengths &lengths, bool dc) noexcept {
  uint32_t code = 0;
  int32_t index = 0;
  uint32_t *entry = entries;
  symbols = lengths.symbols;
  limits[0] = 0;
  for (uint32_t length = 1; length <= 16; ++length) {
    const int32_t count = lengths.counts[length - 1];
    offsets[length] = index - static_cast<int32_t>(code);
    for (int32_t i = 0; i < count; ++i, ++index, ++code) {
      const uint32_t symbol = symbols[index];
      if (dc && symbol > 15) return false;
      // A code too many, or of ones only.
      if (code + 1 >= 1U << length) return false;
      if (length <= bits) entry = fill_code(entry, symbol, length, bits - length, dc);
    }
    limits[length] = code << (16 - length);
    code <<= 1;
  }
  std::fill(entry, entries + (1 << bits), kBad);
  return true;
}

template struct CodeTable<kDcBits>;
template struct CodeTable<kAcBits>;

void EntropyReader::begin(const uint8_t *data, size_t size) noexcept {
  window = load_big_endian(data) & ~uint64_t{0xFF};
  next = data + 7;
  end = data + size;
  missing = 8;
  std::fill(predictions, predictions + kMaxComponents, 0);
}

bool EntropyReader::within_data() const noexcept {
  // The window holds 64 - missing bits of what lies before next.
  return 8 * (next - end) + static_cast<ptrdiff_t>(missing) <= 64;
}

size_t remove_stuffing(const uint8_t *data, size_t size, uint8_t *out) noexcept {
  const uint8_t *const end = data + size;
  uint8_t *to = out;
  for (;;) {
#if defined(__SSE2__)
    const __m128i ones = _mm_set1_epi8(-1);
    while (end - data >= 16) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(data));
      const int found = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, ones));
      _mm_storeu_si128(reinterpret_cast<__m128i *>(to), bytes);
      const int plain = found == 0 ? 16 : __builtin_ctz(static_cast<unsigned int>(found));
      data += plain;
      to += plain;
      if (found != 0) break;
    }
#endif
    while (data < end && *data != 0xFF) *to++ = *data++;
    if (end - data < 2 || data[1] != 0) break;
    *to++ = 0xFF;
    data += 2;
  }
  std::memset(to, 0, kPadding);
  return static_cast<size_t>(to - out);
}

bool skip_mcus(EntropyReader *reader, const McuPlan &plan, int mcus) noexcept {
  return decode<false>(reader, plan, mcus, nullptr, nullptr);
}

bool decode_mcu(EntropyReader *reader, const McuPlan &plan, int16_t *coefficients, uint8_t *lasts) noexcept {
  std::memset(coefficients, 0, static_cast<size_t>(plan.blocks) * kBlockSamples * sizeof *coefficients);
  return decode<true>(reader, plan, 1, coefficients, lasts);
}

}  // namespace feeder
