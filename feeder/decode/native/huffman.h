// Huffman decoding of baseline blocks from bytes whose stuffing was removed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "scan.h"

namespace feeder {

// Blocks of one MCU with 2x2 luma.
constexpr int kMaxBlocks = 6;

// Blocks of the longest run. With their coefficients and the tables, two runs fit the first-level cache.
constexpr int kRunBlocks = 24;

// Bytes of the longest block: 64 times 16 bits of code and 15 of value.
constexpr size_t kLongestBlock = 248;

// What decoding may read behind the data: what fills its registers, and a block.
constexpr size_t kPadding = 512;
static_assert(kPadding >= kLongestBlock + 3 * sizeof(uint64_t));

// Index widths of the look-up tables; both fit the first-level cache together. Measured.
constexpr int kAcBits = 11;
constexpr int kDcBits = 10;

// The way from bits to symbols for codes that are too long for a look-up table. Codes of length n, left-aligned in 16
// bits, are less than limits[n]; the symbol of such a code c is symbols[(c >> (16 - n)) + offsets[n]].
struct LongCodes {
  uint32_t limits[17];
  int32_t offsets[17];
  const uint8_t *symbols;
};

// Differences of DC by the next kDcBits of the data.
struct DcTable {
  // bits 0 to 7    bits to take, of the code and the extra bits together; 0: more bits decide
  // bit 15         more bits decide
  // bits 16 to 31  value; or, if the code is known and the value is not, length of the code and symbol
  uint32_t entries[1 << kDcBits];
  LongCodes codes;

  // False where libjpeg refuses the table.
  bool build(const CodeLengths &lengths) noexcept;
};

// AC coefficients by the next kAcBits of the data: one, or two where these are enough bits for both, or one and the end
// of the block.
struct AcTable {
  // bits 0 to 7    bits to take, of codes and extra bits together; 0: more bits decide
  // bits 8 to 14   positions to move on, to the last coefficient
  // bit 15         the end of the block, or more bits decide
  // bits 16 to 23  how many of these positions lie behind the first coefficient (signed; -1 when there is none)
  // bits 24 to 31  how many of the bits to take belong to the first coefficient
  // bits 32 to 47  value of the last coefficient, when there are two; where more bits decide, as in a DcTable
  // bits 48 to 63  value of the first one
  uint64_t entries[1 << kAcBits];
  LongCodes codes;

  // False where libjpeg refuses the table.
  bool build(const CodeLengths &lengths) noexcept;
};

// The blocks of an MCU, in the order of the data.
struct McuPlan {
  int blocks;
  struct Block {
    const DcTable *dc;
    const AcTable *ac;
    int component;
  } block[kMaxBlocks];
};

// Where decoding stands in entropy-coded data. All members are for those who decode.
struct EntropyReader {
  uint64_t window;      // the next bits, left-aligned
  const uint8_t *next;  // bytes that are not in the window
  uint32_t sum;         // bits 0 to 7: bits of the window that are taken and not refilled, less one; bits 8 to 14, within
                        // a block: 1 + position of its last coefficient
  int16_t *block;       // of the run, at hand
  const AcTable *ac;    // of that block

  const uint8_t *end;   // of the data; kPadding bytes follow
  const McuPlan *plan;
  int next_block;       // in the plan
  int blocks_left;      // of the run
  uint8_t *last;        // of the block at hand
  uint32_t predictions[kMaxComponents];

  // Begins with an MCU at a bit of the first byte. data is followed by kPadding bytes of zero.
  void begin(const McuPlan *mcu, const uint8_t *data, size_t size, uint32_t bit) noexcept;

  // Bits before the next one that is not taken, counted from `data`; more than there are where too many were taken. Not
  // within a run.
  size_t position(const uint8_t *data) const noexcept;

  // Decodes MCUs to coefficients, kBlockSamples for each block in natural order; lasts gets, for each block, the position
  // in zigzag order of its last coefficient that may not be zero. False for damage, which is what no undamaged file has,
  // or the end of the data: the caller asks libjpeg then.
  bool decode(int mcus, int16_t *coefficients, uint8_t *lasts) noexcept;

  // Decodes MCUs and drops all but the DC predictions. False for damage.
  bool skip(int mcus) noexcept;

  // Begins a run, which decodes MCUs in parts. False for damage.
  bool begin_run(int mcus, int16_t *coefficients, uint8_t *lasts) noexcept;

  // Decodes a run to its end. False for damage.
  bool finish_run() noexcept;
};

// Decodes two runs in turn, a few symbols of each, until one of them ends: 0 the first, 1 the second; -1 for damage.
// Neither waits for the other's look-ups, so that this takes much less time than one after the other.
int finish_either(EntropyReader *first, EntropyReader *second) noexcept;

// Copies entropy-coded data up to the first marker without its stuffing, and kPadding bytes of zero behind it. out has
// room for size + kPadding bytes. Returns the size of what was copied, and where in data that ends.
struct Unstuffed {
  size_t size;
  size_t end;
};
Unstuffed remove_stuffing(const uint8_t *data, size_t size, uint8_t *out) noexcept;

// Bytes that `size` bytes of such data take with their stuffing; there are as many.
size_t stuffed_size(const uint8_t *data, size_t size) noexcept;

}  // namespace feeder
