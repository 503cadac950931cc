#include "huffman.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "huffman_entries.h"

namespace feeder {
namespace {

// In a running sum of entries, bits 8 to 14 are 1 + position, so that bit 14 is set by the last position, behind which
// a block has no end code, and bit 15 by every unusual entry.
constexpr uint32_t kStart = 1;
constexpr uint32_t kFull = 64;
constexpr uint32_t kStop = kUnusual | kFull << 8;

// By 1 + position.
constexpr uint8_t kPlaces[kFull + 1] = {
    0,  0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40,
    48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15,
    23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// Sets a block to zero. As memset, gcc makes a loop of it that it does not unroll.
[[gnu::always_inline]] inline void clear(int16_t *block) {
#if defined(__SSE2__)
  const __m128i zero = _mm_setzero_si128();
  for (int i = 0; i < kBlockSamples; i += 8) _mm_storeu_si128(reinterpret_cast<__m128i *>(block + i), zero);
#else
  std::memset(block, 0, kBlockSamples * sizeof *block);
#endif
}

uint64_t load_big_endian(const uint8_t *at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  value = __builtin_bswap64(value);
#endif
  return value;
}

// The registers of a reader, while they are in registers.
struct Bits {
  uint64_t window;
  const uint8_t *next;

  // Fills up the window, also a full one, to 56 bits or more. taken is one less than the bits that are taken from it;
  // afterwards taken & 7 are.
  [[gnu::always_inline]] void refill(uint32_t taken) {
    window |= load_big_endian(next) >> (~taken & 63);
    next += taken >> 3;
  }
};

// Decodes one block. *taken is as in Bits.
template <bool store>
[[gnu::always_inline]] inline bool decode_block(Bits *registers, uint32_t *taken_bits, const DcTable &dc,
                                                const AcTable &ac, uint32_t *prediction, int16_t *block,
                                                uint8_t *last) {
  constexpr int kDcShift = 64 - kDcBits, kAcShift = 64 - kAcBits;
  Bits bits = *registers;
  uint32_t sum = *taken_bits;
  bits.refill(sum);
  sum &= 7;
  uint32_t difference = dc.entries[bits.window >> kDcShift];
  if (__builtin_expect((difference & kUnusual) != 0, 0)) {
    difference = find_entry<kDcBits>(difference >> 16, dc.codes, bits.window, true);
    if (difference == kBad) return false;
    bits.window <<= difference & 63;
    sum += difference & 63;
    bits.refill(sum);
    sum &= 7;
  } else {
    bits.window <<= difference & 63;
    sum += difference & 63;
  }
  *prediction += static_cast<uint32_t>(static_cast<int32_t>(difference) >> 16);
  if (store) {
    clear(block);
    block[0] = static_cast<int16_t>(*prediction);
  }
  sum |= kStart << 8;

  uint64_t entry;
  // 1 + position of the last coefficient, and of the first one of the entry.
  const auto place = [&]() __attribute__((always_inline)) { return sum >> 8 & 0x7F; };
  const auto first_place = [&]() __attribute__((always_inline)) {
    return place() - static_cast<uint32_t>(static_cast<int32_t>(static_cast<int8_t>(entry >> 16)));
  };
  const auto first_value = [&]() __attribute__((always_inline)) { return static_cast<int16_t>(entry >> 48); };
  const auto last_value = [&]() __attribute__((always_inline)) { return static_cast<int16_t>(entry >> 32); };
  // Takes an entry; true when there is more to it.
  const auto step = [&]() __attribute__((always_inline)) {
    entry = ac.entries[bits.window >> kAcShift];
    sum += static_cast<uint32_t>(entry);
    if ((sum & kStop) != 0) return true;
    bits.window <<= entry & 63;
    if (store) {
      // Of a single coefficient both places are the same, and the first value stays.
      block[kPlaces[place()]] = last_value();
      block[kPlaces[first_place()]] = first_value();
    }
    return false;
  };
  for (bool more = step() || step() || step() || step();;) {
    if (more) {
      if ((entry & 0xFF) != 0) break;
      sum -= static_cast<uint32_t>(entry);
      bits.refill(sum & 0xFF);
      sum &= 0x7F07;
      const uint32_t single =
          find_entry<kAcBits>(static_cast<uint32_t>(entry >> 32), ac.codes, bits.window, false);
      if (single == kBad) return false;
      entry = (single & kUnusual) != 0 ? widen_unusual(single) : widen(single);
      sum += static_cast<uint32_t>(entry);
      if ((sum & kStop) != 0) break;
      bits.window <<= entry & 63;
      if (store) block[kPlaces[place()]] = first_value();
    }
    bits.refill(sum & 0xFF);
    sum &= 0x7F07;
    more = step() || step() || step() || step() || step();
  }

  uint32_t taken = static_cast<uint32_t>(entry) & 63;
  const uint32_t end = place();
  if (end < kFull) {
    if (store) block[kPlaces[first_place()]] = first_value();
  } else if (first_place() == kFull) {
    // The block was full before what else the entry has.
    const uint32_t first_taken = static_cast<uint32_t>(entry >> 24) & 63;
    sum += first_taken - taken;
    taken = first_taken;
    if (store) block[kBlockSamples - 1] = first_value();
  } else if (end == kFull && (entry & kUnusual) == 0) {
    if (store) {
      block[kBlockSamples - 1] = last_value();
      block[kPlaces[first_place()]] = first_value();
    }
  } else {
    return false;
  }
  bits.window <<= taken;
  if (store) *last = static_cast<uint8_t>(end - kStart);
  *registers = bits;
  *taken_bits = sum & 0xFF;
  return true;
}

template <bool store>
inline bool decode(EntropyReader *reader, int mcus, int16_t *coefficients, uint8_t *lasts) {
  Bits bits = {reader->window, reader->next};
  uint32_t taken = reader->sum & 0xFF;
  const McuPlan &plan = *reader->plan;
  const uint8_t *const guard = reader->end + sizeof bits.window;
  for (int mcu = 0; mcu < mcus; ++mcu) {
    for (int i = 0; i < plan.blocks; ++i) {
      const McuPlan::Block &block = plan.block[i];
      if (bits.next > guard || !decode_block<store>(&bits, &taken, *block.dc, *block.ac,
                                                    &reader->predictions[block.component], coefficients, lasts)) {
        return false;
      }
      if (store) {
        coefficients += kBlockSamples;
        ++lasts;
      }
    }
  }
  reader->window = bits.window;
  reader->next = bits.next;
  reader->sum = taken;
  return true;
}

enum class Step { kBlock, kRunDone, kDamage };

// What a reader keeps in registers.
struct Registers {
  uint64_t window;
  const uint8_t *next;
  uint32_t sum;
  int16_t *block;
  const AcTable *ac;

  explicit Registers(const EntropyReader &reader)
      : window(reader.window), next(reader.next), sum(reader.sum), block(reader.block), ac(reader.ac) {}

  void save(EntropyReader *reader) const {
    reader->window = window;
    reader->next = next;
    reader->sum = sum;
    reader->block = block;
    reader->ac = ac;
  }

  // Fills up the window to 56 bits or more, which it may be filled up to already.
  [[gnu::always_inline]] void refill() {
    window |= load_big_endian(next) >> (~sum & 63);
    next += (sum & 0xFF) >> 3;
    sum &= 0x7F07;
  }

  [[gnu::always_inline]] void take(uint32_t bits) {
    window <<= bits & 63;
    sum += bits & 63;
  }
};

constexpr uint32_t place(uint32_t sum) { return sum >> 8 & 0x7F; }

// Of the first coefficient of an entry that the sum has.
constexpr uint32_t first_place(uint32_t sum, uint64_t entry) {
  return place(sum) - static_cast<uint32_t>(static_cast<int32_t>(static_cast<int8_t>(entry >> 16)));
}
constexpr int16_t first_value(uint64_t entry) { return static_cast<int16_t>(entry >> 48); }
constexpr int16_t last_value(uint64_t entry) { return static_cast<int16_t>(entry >> 32); }

// Begins the next block: its DC coefficient. False for damage.
[[gnu::always_inline]] inline bool begin_block(Registers *registers, EntropyReader *reader) {
  Registers &r = *registers;
  const McuPlan::Block &block = reader->plan->block[reader->next_block];
  reader->next_block = reader->next_block + 1 == reader->plan->blocks ? 0 : reader->next_block + 1;
  if (r.next > reader->end + sizeof r.window) return false;
  r.sum &= 0xFF;
  r.refill();
  uint32_t difference = block.dc->entries[r.window >> (64 - kDcBits)];
  if (__builtin_expect((difference & kUnusual) != 0, 0)) {
    difference = find_entry<kDcBits>(difference >> 16, block.dc->codes, r.window, true);
    if (difference == kBad) return false;
  }
  r.take(difference);
  uint32_t &prediction = reader->predictions[block.component];
  prediction += static_cast<uint32_t>(static_cast<int32_t>(difference) >> 16);
  clear(r.block);
  r.block[0] = static_cast<int16_t>(prediction);
  r.sum |= kStart << 8;
  r.ac = block.ac;
  return true;
}

// Takes one AC entry. True when there is more to it than coefficients; then the sum has it, and nothing else has.
[[gnu::always_inline]] inline bool take_entry(Registers *registers, uint64_t *found) {
  Registers &r = *registers;
  const uint64_t entry = *found = r.ac->entries[r.window >> (64 - kAcBits)];
  r.sum += static_cast<uint32_t>(entry);
  if (__builtin_expect((r.sum & kStop) != 0, 0)) return true;
  r.window <<= entry & 63;
  // Of a single coefficient both places are the same, and the first value stays.
  r.block[kPlaces[place(r.sum)]] = last_value(entry);
  r.block[kPlaces[first_place(r.sum, entry)]] = first_value(entry);
  return false;
}

// Does what take_entry() left, and where that ends the block begins the next one.
[[gnu::always_inline]] inline Step take_unusual(Registers *registers, EntropyReader *reader, uint64_t entry) {
  Registers &r = *registers;
  if ((entry & 0xFF) == 0) {
    r.sum -= static_cast<uint32_t>(entry);
    r.refill();
    const uint32_t single =
        find_entry<kAcBits>(static_cast<uint32_t>(entry >> 32), r.ac->codes, r.window, false);
    if (single == kBad) return Step::kDamage;
    entry = (single & kUnusual) != 0 ? widen_unusual(single) : widen(single);
    r.sum += static_cast<uint32_t>(entry);
    if ((r.sum & kStop) == 0) {
      r.window <<= entry & 63;
      r.block[kPlaces[place(r.sum)]] = first_value(entry);
      return Step::kBlock;
    }
  }
  uint32_t taken = static_cast<uint32_t>(entry) & 63;
  const uint32_t end = place(r.sum), first = first_place(r.sum, entry);
  if (end < kFull) {
    r.block[kPlaces[first]] = first_value(entry);
  } else if (first == kFull) {
    // The block was full before what else the entry has.
    const uint32_t first_taken = static_cast<uint32_t>(entry >> 24) & 63;
    r.sum += first_taken - taken;
    taken = first_taken;
    r.block[kBlockSamples - 1] = first_value(entry);
  } else if (end == kFull && (entry & kUnusual) == 0) {
    r.block[kBlockSamples - 1] = last_value(entry);
    r.block[kPlaces[first]] = first_value(entry);
  } else {
    return Step::kDamage;
  }
  r.window <<= taken;
  *reader->last++ = static_cast<uint8_t>(std::min(end, kFull) - kStart);
  r.block += kBlockSamples;
  if (--reader->blocks_left == 0) return Step::kRunDone;
  return begin_block(&r, reader) ? Step::kBlock : Step::kDamage;
}

// Entries that a full window is enough for.
constexpr int kEntries = 56 / kAcBits;

}  // namespace

int finish_either(EntropyReader *first, EntropyReader *second) noexcept {
  Registers a(*first), b(*second);
  Step step;
  int which = 0;
  do {
    uint64_t entry;
    step = Step::kBlock;
    a.refill();
    b.refill();
#pragma GCC unroll 8
    for (int i = 0; i < kEntries; ++i) {
      if (take_entry(&a, &entry)) goto more_of_a;
      if (take_entry(&b, &entry)) goto more_of_b;
    }
    continue;
  more_of_a:
    step = take_unusual(&a, first, entry);
    which = 0;
    continue;
  more_of_b:
    step = take_unusual(&b, second, entry);
    which = 1;
  } while (step == Step::kBlock);
  a.save(first);
  b.save(second);
  return step == Step::kRunDone ? which : -1;
}

void EntropyReader::begin(const McuPlan *mcu, const uint8_t *data, size_t size, uint32_t bit) noexcept {
  window = (load_big_endian(data) & ~uint64_t{0xFF}) << bit;
  next = data + 7;
  sum = 7 + bit;
  end = data + size;
  plan = mcu;
  next_block = 0;
  std::fill(predictions, predictions + kMaxComponents, 0);
}

size_t EntropyReader::position(const uint8_t *data) const noexcept {
  return 8 * static_cast<size_t>(next - data) + (sum & 0xFF) - 63;
}

bool EntropyReader::begin_run(int mcus, int16_t *coefficients, uint8_t *lasts) noexcept {
  blocks_left = mcus * plan->blocks;
  block = coefficients;
  last = lasts;
  Registers registers(*this);
  const bool sound = begin_block(&registers, this);
  registers.save(this);
  return sound;
}

bool EntropyReader::finish_run() noexcept {
  Registers r(*this);
  Step step;
  do {
    uint64_t entry;
    step = Step::kBlock;
    r.refill();
#pragma GCC unroll 8
    for (int i = 0; i < kEntries; ++i) {
      if (take_entry(&r, &entry)) goto more;
    }
    continue;
  more:
    step = take_unusual(&r, this, entry);
  } while (step == Step::kBlock);
  r.save(this);
  return step == Step::kRunDone;
}

bool EntropyReader::decode(int mcus, int16_t *coefficients, uint8_t *lasts) noexcept {
  return feeder::decode<true>(this, mcus, coefficients, lasts);
}

bool EntropyReader::skip(int mcus) noexcept { return feeder::decode<false>(this, mcus, nullptr, nullptr); }

Unstuffed remove_stuffing(const uint8_t *data, size_t size, uint8_t *out) noexcept {
  const uint8_t *const begin = data, *const end = data + size;
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
  return {static_cast<size_t>(to - out), static_cast<size_t>(data - begin)};
}

size_t stuffed_size(const uint8_t *data, size_t size) noexcept {
  const uint8_t *at = data;
  while (size > 0) {
    const auto *found = static_cast<const uint8_t *>(std::memchr(at, 0xFF, size));
    if (found == nullptr) return static_cast<size_t>(at - data) + size;
    size -= static_cast<size_t>(found - at) + 1;
    at = found + 2;
  }
  return static_cast<size_t>(at - data);
}

}  // namespace feeder
