// What a plain baseline file says before its entropy-coded data.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feeder {

constexpr int kBlockSamples = 64;
constexpr int kMaxComponents = 3;

// Zigzag order to natural order.
extern const uint8_t kNaturalOrder[kBlockSamples];

// A Huffman table as it stands in the file: codes of each length from 1 to 16, and the symbols in order of their codes.
struct CodeLengths {
  const uint8_t *counts;  // 16; nullptr: there is no such table
  const uint8_t *symbols;
};

struct ScanComponent {
  CodeLengths dc, ac;
  uint16_t quant[kBlockSamples];  // natural order
};

// One scan of 8-bit samples. Chroma has a sample for each h columns and v rows, 4 pixels at most; a lone component is
// not interleaved, and v only says how many rows of blocks libjpeg decodes together.
struct Scan {
  int32_t width, height;  // pixels
  int components;         // 1 (gray) or 3 (YCbCr)
  int h, v;               // sampling factors of the first component
  ScanComponent component[kMaxComponents];
  int restart_interval;  // MCUs from one restart marker to the next; 0: there are none
  const uint8_t *file;
  size_t size;   // of the file
  size_t start;  // of the entropy-coded data
};

// True, and *scan, for a well-formed baseline or extended sequential file with all of its components in one scan and
// a sampling that Scan can say. False for everything else, damaged or not: libjpeg is asked then.
// What this accepts, libjpeg accepts without a warning, but for that of an odd JFIF version. *scan points into data.
bool read_scan(const uint8_t *data, size_t size, Scan *scan) noexcept;

}  // namespace feeder
