#include "scan.h"

#include <cstring>

namespace feeder {

const uint8_t kNaturalOrder[kBlockSamples] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

namespace {

constexpr int kTables = 4;
constexpr int32_t kMaxSide = 65500;  // JPEG_MAX_DIMENSION

int big_endian_16(const uint8_t *at) { return at[0] << 8 | at[1]; }

class Walk {
 public:
  Walk(const uint8_t *data, size_t size, Scan *scan) : data_(data), size_(size), scan_(scan) {}

  bool run() {
    scan_->restart_interval = 0;
    if (size_ < 2 || data_[0] != 0xFF || data_[1] != 0xD8) return false;
    size_t at = 2;
    for (;;) {
      if (size_ - at < 4 || data_[at] != 0xFF) return false;
      const uint8_t marker = data_[at + 1];
      const auto length = static_cast<size_t>(big_endian_16(data_ + at + 2));
      if (length < 2 || length > size_ - at - 2) return false;
      const uint8_t *segment = data_ + at + 4;
      if (!read_segment(marker, segment, length - 2)) return false;
      at += 2 + length;
      if (marker == 0xDA) {
        scan_->file = data_;
        scan_->size = size_;
        scan_->start = at;
        return true;
      }
    }
  }

 private:
  bool read_segment(uint8_t marker, const uint8_t *segment, size_t length) {
    switch (marker) {
      case 0xC0:
      case 0xC1:
        return read_frame(segment, length);
      case 0xC4:
        return read_codes(segment, length);
      case 0xDA:
        return read_scan_header(segment, length);
      case 0xDB:
        return read_quant(segment, length);
      case 0xDD:
        if (length != 2) return false;
        scan_->restart_interval = big_endian_16(segment);
        return true;
      case 0xE0:
        jfif_ = jfif_ || (length >= 14 && std::memcmp(segment, "JFIF", 5) == 0);
        return true;
      case 0xEE:
        if (length >= 12 && std::memcmp(segment, "Adobe", 5) == 0) {
          adobe_ = true;
          adobe_transform_ = segment[11];
        }
        return true;
      default:
        return (marker > 0xE0 && marker <= 0xEF) || marker == 0xFE;
    }
  }

  bool read_quant(const uint8_t *segment, size_t length) {
    while (length > 0) {
      const int index = segment[0] & 15;
      const bool wide = segment[0] >> 4 != 0;
      const size_t bytes = 1 + kBlockSamples * (wide ? 2 : 1);
      if (index >= kTables || segment[0] >> 4 > 1 || length < bytes) return false;
      quant_[index] = segment;
      segment += bytes;
      length -= bytes;
    }
    return true;
  }

  bool read_codes(const uint8_t *segment, size_t length) {
    while (length > 0) {
      const int index = segment[0] & 15;
      if (index >= kTables || segment[0] >> 4 > 1 || length < 17) return false;
      size_t symbols = 0;
      for (int i = 1; i <= 16; ++i) symbols += segment[i];
      if (symbols > 256 || length < 17 + symbols) return false;
      codes_[segment[0] >> 4][index] = {segment + 1, segment + 17};
      segment += 17 + symbols;
      length -= 17 + symbols;
    }
    return true;
  }

  bool read_frame(const uint8_t *segment, size_t length) {
    if (frame_ != nullptr || length < 6 || segment[0] != 8) return false;
    scan_->height = big_endian_16(segment + 1);
    scan_->width = big_endian_16(segment + 3);
    const int components = segment[5];
    if (scan_->width < 1 || scan_->width > kMaxSide || scan_->height < 1 || scan_->height > kMaxSide) return false;
    if ((components != 1 && components != 3) || length != 6 + 3 * static_cast<size_t>(components)) return false;
    frame_ = segment + 6;
    scan_->components = components;
    scan_->h = frame_[1] >> 4;
    scan_->v = frame_[1] & 15;
    if (components == 1) return scan_->h >= 1 && scan_->h <= 4 && scan_->v >= 1 && scan_->v <= 4;
    const int blocks = scan_->h * scan_->v;
    return (blocks == 1 || blocks == 2 || blocks == 4) && frame_[4] == 0x11 && frame_[7] == 0x11;
  }

  // The guess that libjpeg makes; a file that means RGB is left to it.
  bool is_ycc() const {
    if (jfif_) return true;
    if (adobe_) return adobe_transform_ == 1;
    const bool rgb = frame_[0] == 'R' && frame_[3] == 'G' && frame_[6] == 'B';
    return !rgb;
  }

  bool read_scan_header(const uint8_t *segment, size_t length) {
    if (frame_ == nullptr) return false;
    const int components = scan_->components;
    if (length != 4 + 2 * static_cast<size_t>(components) || segment[0] != components) return false;
    if (components == 3) {
      if (frame_[0] == frame_[3] || frame_[0] == frame_[6] || frame_[3] == frame_[6] || !is_ycc()) return false;
    }
    for (int i = 0; i < components; ++i) {
      const uint8_t *selector = segment + 1 + 2 * i;
      const int dc = selector[1] >> 4, ac = selector[1] & 15, quant = frame_[3 * i + 2];
      if (selector[0] != frame_[3 * i] || dc >= kTables || ac >= kTables || quant >= kTables) return false;
      ScanComponent &component = scan_->component[i];
      component.dc = codes_[0][dc];
      component.ac = codes_[1][ac];
      if (component.dc.counts == nullptr || component.ac.counts == nullptr || quant_[quant] == nullptr) return false;
      const bool wide = quant_[quant][0] >> 4 != 0;
      const uint8_t *values = quant_[quant] + 1;
      for (int k = 0; k < kBlockSamples; ++k) {
        component.quant[kNaturalOrder[k]] =
            static_cast<uint16_t>(wide ? big_endian_16(values + 2 * k) : values[k]);
      }
    }
    const uint8_t *spectrum = segment + 1 + 2 * components;
    return spectrum[0] == 0 && spectrum[1] == 63 && spectrum[2] == 0;
  }

  const uint8_t *data_;
  size_t size_;
  Scan *scan_;
  const uint8_t *frame_ = nullptr;          // id, factors and quantisation table of each component
  const uint8_t *quant_[kTables] = {};      // from the byte with precision and index
  CodeLengths codes_[2][kTables] = {};      // DC, AC
  bool jfif_ = false, adobe_ = false;
  int adobe_transform_ = 0;
};

}  // namespace

bool read_scan(const uint8_t *data, size_t size, Scan *scan) noexcept { return Walk(data, size, scan).run(); }

}  // namespace feeder
