// The walk over the markers before the first scan; the same rules as feeder/decode/header.py, which explains what
// this one only refuses.

#include "jpeg_crop.h"

namespace {

// See _PIXELS_PER_BYTE in header.py: what the shortest possible codes can hold.
constexpr uint64_t kPixelsPerByte = 256;
constexpr uint64_t kPixelsPerByteProgressive = 512;
constexpr uint64_t kSmallPixels = 1 << 16;

struct Frame {
  feeder_header header;
  bool progressive;
  bool arithmetic;
  bool found;
};

uint32_t big_endian_16(const uint8_t *at) { return static_cast<uint32_t>(at[0]) << 8 | at[1]; }

bool read_frame(const uint8_t *segment, size_t length, uint8_t marker, Frame *frame) {
  const bool decodable = marker == 0xC0 || marker == 0xC1 || marker == 0xC2 || marker == 0xC9 || marker == 0xCA;
  if (frame->found || !decodable || length < 8 || segment[2] != 8) return false;
  const uint32_t components = segment[7];
  if ((components != 1 && components != 3) || length != 8 + 3 * components) return false;
  frame->header.height = static_cast<int32_t>(big_endian_16(segment + 3));
  frame->header.width = static_cast<int32_t>(big_endian_16(segment + 5));
  frame->header.components = static_cast<int32_t>(components);
  frame->progressive = marker == 0xC2 || marker == 0xCA;
  frame->arithmetic = marker >= 0xC9;
  frame->found = true;
  return frame->header.width > 0 && frame->header.height > 0;
}

// FF DA never occurs in entropy-coded data, so that this is an upper bound of the scans to come.
uint64_t count_scans(const uint8_t *data, size_t size) {
  uint64_t scans = 0;
  for (size_t at = 0; at + 1 < size; ++at) {
    if (data[at] == 0xFF && data[at + 1] == 0xDA) ++scans;
  }
  return scans;
}

}  // namespace

extern "C" feeder_status feeder_read_header(const uint8_t *data, size_t size, const feeder_limits *limits,
                                            feeder_header *header) {
  if (size < 4 || size > limits->max_bytes || data[0] != 0xFF || data[1] != 0xD8) return FEEDER_OTHER;
  Frame frame = {};
  size_t at = 2;
  for (;;) {
    while (at < size && data[at] != 0xFF) ++at;
    while (at < size && data[at] == 0xFF) ++at;
    if (at >= size) return FEEDER_OTHER;
    const uint8_t marker = data[at++];
    if (marker == 0x00 || marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) continue;
    if (marker == 0xD8 || marker == 0xD9 || size - at < 2) return FEEDER_OTHER;
    const size_t length = big_endian_16(data + at);
    if (length < (marker == 0xDA ? 8U : 2U) || length > size - at) return FEEDER_OTHER;
    const bool is_frame = marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
    if (is_frame && !read_frame(data + at, length, marker, &frame)) return FEEDER_OTHER;
    if (marker == 0xDA) break;
    at += length;
  }
  if (!frame.found) return FEEDER_OTHER;
  const uint64_t pixels = static_cast<uint64_t>(frame.header.width) * static_cast<uint64_t>(frame.header.height);
  const uint64_t capacity = size * (frame.progressive ? kPixelsPerByteProgressive : kPixelsPerByte) + kSmallPixels;
  if (pixels > limits->max_pixels || (pixels > capacity && !frame.arithmetic)) return FEEDER_OTHER;
  const bool all_in_scan = data[at + 2] == frame.header.components;
  if (frame.progressive || !all_in_scan) {
    const uint64_t scans = count_scans(data + at - 2, size - at + 2);
    if (scans > limits->max_scans || scans * pixels > limits->max_scan_pixels) return FEEDER_OTHER;
  }
  frame.header.one_scan = all_in_scan && !frame.progressive && !frame.arithmetic ? 1 : 0;
  *header = frame.header;
  return FEEDER_OK;
}
