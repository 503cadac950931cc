#include "frames.h"

#include <cstring>

namespace feeder {

namespace {

constexpr size_t kHeaderBytes = 12, kFooterBytes = 4;

constexpr uint64_t kMaxLabel = 0x7FFFFFFF;

uint32_t read_32(const uint8_t *at) {
  return at[0] | static_cast<uint32_t>(at[1]) << 8 | static_cast<uint32_t>(at[2]) << 16 |
         static_cast<uint32_t>(at[3]) << 24;
}

uint64_t read_64(const uint8_t *at) { return read_32(at) | static_cast<uint64_t>(read_32(at + 4)) << 32; }

// Bytes of a message that are not read yet.
class Piece {
 public:
  Piece() = default;
  Piece(const uint8_t *data, size_t size) : at_(data), size_(size) {}

  const uint8_t *data() const { return at_; }
  size_t size() const { return size_; }

  bool is(const std::string &text) const {
    return size_ == text.size() && std::memcmp(at_, text.data(), size_) == 0;
  }

  // Reads a varint of at most 63 bits, in at most 9 bytes; false where there is none.
  bool take_varint(uint64_t *value) {
    *value = 0;
    for (size_t i = 0; i < size_ && i < 9; ++i) {
      *value |= static_cast<uint64_t>(at_[i] & 0x7F) << 7 * i;
      if (at_[i] < 0x80) {
        skip(i + 1);
        return true;
      }
    }
    return false;
  }

  // Reads a field with a length; false where there is none, or another tag.
  bool take(uint8_t tag, Piece *content) {
    if (size_ == 0 || *at_ != tag) return false;
    skip(1);
    uint64_t length;
    if (!take_varint(&length) || length > size_) return false;
    *content = Piece(at_, static_cast<size_t>(length));
    skip(content->size_);
    return true;
  }

  // The same, with nothing behind it.
  bool take_all(uint8_t tag, Piece *content) { return take(tag, content) && size_ == 0; }

 private:
  void skip(size_t count) {
    at_ += count;
    size_ -= count;
  }

  const uint8_t *at_ = nullptr;
  size_t size_ = 0;
};

constexpr uint8_t tag(int field) { return static_cast<uint8_t>(field << 3 | 2); }

// example.py draws the messages, and says what holds where one of them says something twice.
constexpr uint8_t kFeatures = tag(1), kEntry = tag(1), kKey = tag(1), kValue = tag(2), kBytesList = tag(1),
                  kInt64List = tag(3), kListed = tag(1);

// Longer keys are left to example.py.
constexpr size_t kMaxKeyBytes = 127;

bool read_example(Piece payload, const ScanSettings &settings, IndexRow *row) {
  const uint8_t *start = payload.data();
  Piece features, entry, key, value, image_feature, label_feature;
  if (!payload.take_all(kFeatures, &features)) return false;
  while (features.size() != 0) {
    if (!features.take(kEntry, &entry) || !entry.take(kKey, &key) || !entry.take_all(kValue, &value) ||
        key.size() > kMaxKeyBytes) {
      return false;
    }
    if (key.is(settings.image)) image_feature = value;
    if (key.is(settings.label)) label_feature = value;
  }
  Piece list, image, packed;
  if (!image_feature.take_all(kBytesList, &list) || !list.take_all(kListed, &image) || image.size() == 0) return false;
  uint64_t label;
  if (!label_feature.take_all(kInt64List, &list) || !list.take_all(kListed, &packed) || !packed.take_varint(&label) ||
      packed.size() != 0) {
    return false;
  }
  const uint64_t from_zero = label - static_cast<uint64_t>(settings.label_base);  // wraps below zero
  if (from_zero > kMaxLabel) return false;
  row->label = static_cast<int64_t>(from_zero);
  row->image_start = image.data() - start;
  row->image_bytes = static_cast<int64_t>(image.size());
  return true;
}

}  // namespace

Scanned scan_frames(const uint8_t *data, size_t size, int64_t offset, const ScanSettings &settings, IndexRow *rows,
                    size_t most) noexcept {
  const Crc32c &crc32c = *settings.crc32c;
  Scanned scanned = {0, 0, 0};
  while (scanned.rows < most) {
    const uint8_t *at = data + scanned.used;
    const size_t left = size - scanned.used;
    if (left < kHeaderBytes) {
      scanned.need = kHeaderBytes;
      break;
    }
    const uint64_t length = read_64(at);
    if (mask_crc(crc32c(at, 8)) != read_32(at + 8) || length > settings.max_record_bytes) break;
    const uint64_t whole = kHeaderBytes + length + kFooterBytes;
    if (left < whole) {
      scanned.need = whole;
      break;
    }
    const Piece payload(at + kHeaderBytes, static_cast<size_t>(length));
    IndexRow row = {};
    const uint32_t crc = crc32c(payload.data(), payload.size());
    if (mask_crc(crc) != read_32(payload.data() + payload.size()) || !read_example(payload, settings, &row)) break;
    row.offset = offset + static_cast<int64_t>(scanned.used + kHeaderBytes);
    row.length = static_cast<int64_t>(length);
    row.crc = crc;
    rows[scanned.rows++] = row;
    scanned.used += static_cast<size_t>(whole);
  }
  return scanned;
}

}  // namespace feeder
