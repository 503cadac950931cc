// A shard of records whose payloads are any bytes at all, framed as they should be, but for a bit that is turned, and a
// cut. What is taken of it are the records at its start, each as a slow reader of protobuf's wire format reads it; in one
// piece, in two, or one by one; and all ways to compute a crc32c agree.

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "crc32c.h"
#include "frames.h"
#include "fuzz_input.h"

namespace {

using fuzz::Bytes;
using fuzz::finding;

constexpr size_t kFrameBytes = 16;
constexpr size_t kMost = 64;

using Rows = std::vector<feeder::IndexRow>;

uint32_t slow_crc32c(const uint8_t *data, size_t size) {
  uint32_t crc = ~uint32_t{0};
  for (size_t i = 0; i < size; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82F63B78U : 0);
  }
  return ~crc;
}

void append(uint64_t value, size_t bytes, Bytes *out) {
  for (size_t i = 0; i < bytes; ++i) out->push_back(static_cast<uint8_t>(value >> 8 * i));
}

void append_frame(const uint8_t *payload, size_t size, Bytes *out) {
  append(size, 8, out);
  append(feeder::mask_crc(slow_crc32c(out->data() + out->size() - 8, 8)), 4, out);
  out->insert(out->end(), payload, payload + size);
  append(feeder::mask_crc(slow_crc32c(payload, size)), 4, out);
}

// A field of a message: where its content is, or its value.
struct Field {
  uint64_t number, value;
  int wire;
  size_t start, stop;
};

bool read_varint(const Bytes &data, size_t *at, size_t end, uint64_t *value) {
  *value = 0;
  for (int i = 0; *at < end && i < 10; ++i) {
    const uint8_t byte = data[(*at)++];
    if (i < 9 || byte < 2) *value |= static_cast<uint64_t>(byte & 0x7F) << 7 * i;
    if (byte < 0x80) return true;
  }
  return false;
}

// The fields of data[start:stop]; false where it is no message.
bool read_fields(const Bytes &data, size_t start, size_t stop, std::vector<Field> *fields) {
  fields->clear();
  while (start < stop) {
    Field field = {};
    uint64_t tag;
    if (!read_varint(data, &start, stop, &tag)) return false;
    field.number = tag >> 3;
    field.wire = static_cast<int>(tag & 7);
    field.start = start;
    uint64_t size = 0;
    if (field.wire == 0) {
      if (!read_varint(data, &start, stop, &field.value)) return false;
    } else if (field.wire == 1 || field.wire == 5) {
      size = field.wire == 1 ? 8 : 4;
    } else if (field.wire == 2) {
      if (!read_varint(data, &start, stop, &size)) return false;
      field.start = start;
    } else {
      return false;
    }
    if (size > stop - start) return false;
    field.stop = start += static_cast<size_t>(size);
    fields->push_back(field);
  }
  return true;
}

// The one value of a Feature's list, whose kind is the number of its field; false where it is not just one.
bool read_one(const Bytes &data, const Field &feature, uint64_t kind, Field *value) {
  std::vector<Field> lists, values;
  if (!read_fields(data, feature.start, feature.stop, &lists) || lists.size() != 1 || lists[0].number != kind) return false;
  if (!read_fields(data, lists[0].start, lists[0].stop, &values) || values.size() != 1) return false;
  *value = values[0];
  return value->number == 1 && value->wire == 2;
}

// Whether the record is what a row of it says.
bool says(const Bytes &payload, const feeder::ScanSettings &settings, const feeder::IndexRow &row) {
  std::vector<Field> features, entries, sides;
  Field image = {}, label = {};
  if (!read_fields(payload, 0, payload.size(), &features)) return false;
  for (const Field &feature : features) {
    if (!read_fields(payload, feature.start, feature.stop, &entries)) return false;
    for (const Field &entry : entries) {
      if (!read_fields(payload, entry.start, entry.stop, &sides)) return false;
      std::string key;
      Field value = {};
      for (const Field &side : sides) {
        if (side.number == 1) key.assign(payload.begin() + static_cast<ptrdiff_t>(side.start),
                                         payload.begin() + static_cast<ptrdiff_t>(side.stop));
        if (side.number == 2) value = side;
      }
      if (key == settings.image) image = value;
      if (key == settings.label) label = value;
    }
  }
  Field encoded, packed;
  if (!read_one(payload, image, 1, &encoded) || !read_one(payload, label, 3, &packed)) return false;
  uint64_t stored;
  size_t at = packed.start;
  if (!read_varint(payload, &at, packed.stop, &stored) || at != packed.stop) return false;
  return static_cast<size_t>(row.image_start) == encoded.start && row.image_bytes > 0 &&
         static_cast<size_t>(row.image_bytes) == encoded.stop - encoded.start && row.label >= 0 &&
         row.label <= 0x7FFFFFFF && stored == static_cast<uint64_t>(row.label + settings.label_base);
}

bool same(const Rows &one, const Rows &other) {
  return one.size() == other.size() &&
         (one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof one[0]) == 0);
}

struct Scan {
  Rows rows;
  feeder::Scanned scanned;
};

// Of data[start:stop], copied, so that AddressSanitizer finds a read behind it.
Scan scan(const Bytes &data, size_t start, size_t stop, const feeder::ScanSettings &settings, size_t most) {
  const Bytes piece(data.begin() + static_cast<ptrdiff_t>(start), data.begin() + static_cast<ptrdiff_t>(stop));
  Scan result = {Rows(most), {}};
  result.scanned = feeder::scan_frames(piece.data(), piece.size(), static_cast<int64_t>(start), settings,
                                       result.rows.data(), most);
  if (result.scanned.rows > most || result.scanned.used > piece.size()) finding("more than there is");
  if (result.scanned.need != 0 && result.scanned.need <= piece.size() - result.scanned.used) finding("needs what is there");
  result.rows.resize(result.scanned.rows);
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const fuzz::Input input(data, size);
  const uint8_t *choices = input.choices;
  const Bytes &content = input.image;
  for (const feeder::Crc32c *way : feeder::kCrc32c) {
    if (way->runs_here() && (*way)(content.data(), content.size()) != slow_crc32c(content.data(), content.size())) {
      finding("another crc32c");
    }
  }

  Bytes shard;
  const size_t count = 1 + choices[0] % 4;
  for (size_t i = 0; i < count; ++i) {
    const size_t start = content.size() * i / count, stop = content.size() * (i + 1) / count;
    append_frame(content.data() + start, stop - start, &shard);
  }
  if (choices[1] % 4 == 1) {
    const size_t bit = (choices[2] | static_cast<size_t>(choices[3]) << 8) % (8 * shard.size());
    shard[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
  if (choices[1] % 4 == 2) shard.resize(shard.size() - std::min<size_t>(choices[2], shard.size()));

  const uint64_t max_bytes = choices[5] % 4 == 1 ? choices[6] : 1 << 20;
  const feeder::Crc32c *best = &feeder::best_crc32c();
  feeder::ScanSettings settings = {"image/encoded", "image/class/label", 1, max_bytes, best};
  if (choices[4] % 4 == 1) settings = {"i", "l", -3, max_bytes, best};
  if (choices[4] % 4 == 2) settings = {"image", "label", 0x7FFFFFFF, max_bytes, best};

  const Scan whole = scan(shard, 0, shard.size(), settings, kMost);
  size_t at = 0;
  for (const feeder::IndexRow &row : whole.rows) {
    const auto length = static_cast<size_t>(row.length);
    if (static_cast<size_t>(row.offset) != at + 12 || length > max_bytes || length > shard.size() - at - kFrameBytes) {
      finding("a record that is elsewhere");
    }
    const Bytes payload(shard.begin() + row.offset, shard.begin() + row.offset + row.length);
    Bytes framed;
    append_frame(payload.data(), payload.size(), &framed);
    if (!std::equal(framed.begin(), framed.end(), shard.begin() + static_cast<ptrdiff_t>(at))) finding("a damaged record");
    if (row.crc != slow_crc32c(payload.data(), length) || row.unpacked != 0) finding("another row");
    if (!says(payload, settings, row)) finding("a record that says something else");
    at += kFrameBytes + length;
  }
  if (at != whole.scanned.used) finding("other bytes were used");

  const size_t cut = shard.size() * choices[7] / 255;
  Scan pieces = scan(shard, 0, cut, settings, kMost);
  const Scan rest = scan(shard, pieces.scanned.used, shard.size(), settings, kMost);
  pieces.rows.insert(pieces.rows.end(), rest.rows.begin(), rest.rows.end());
  if (!same(pieces.rows, whole.rows)) finding("two pieces differ from one");

  Rows singles;
  for (at = 0;;) {
    const Scan one = scan(shard, at, shard.size(), settings, 1);
    if (one.rows.empty()) break;
    singles.push_back(one.rows[0]);
    at += one.scanned.used;
  }
  if (!same(singles, whole.rows)) finding("one by one they differ");
  return 0;
}
