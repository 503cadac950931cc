// The records of a TFRecord shard whose tf.train.Example lies as every writer lays it, taken into rows of an index.
//
// What is not so is left to feeder/records/tfrecord.py and example.py, which read any Example and say what is wrong with
// a record: here nothing is an error, and no more is taken than what they say of the same bytes, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "crc32c.h"

namespace feeder {

struct ScanSettings {
  std::string image, label;   // features, as Keys in feeder/records/keys.py
  int64_t label_base;         // within 32 bits
  uint64_t max_record_bytes;  // a longer record is left to others; below 2**63
  const Crc32c *crc32c;
};

// A row of IndexBuilder in feeder/records/index.py.
struct IndexRow {
  int64_t offset, length, label, crc, image_start, image_bytes, unpacked;
};

struct Scanned {
  size_t rows;    // records that were taken
  size_t used;    // bytes that they have
  uint64_t need;  // bytes that the next one has, header and footer too, where they are not all there; otherwise 0
};

// Takes the records at the start of data[:size], up to `most`, or the first that is left to others.
//   offset: of data in the shard, in bytes
//   rows:   `most` of them
Scanned scan_frames(const uint8_t *data, size_t size, int64_t offset, const ScanSettings &settings, IndexRow *rows,
                    size_t most) noexcept;

}  // namespace feeder
