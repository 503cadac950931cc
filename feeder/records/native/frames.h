// The records of a TFRecord shard whose tf.train.Example lies as every writer lays it, taken into rows of an index.
//
// What is not so is left to feeder/records/tfrecord.py and example.py, which read any Example and say what is wrong with
// a record: here nothing is an error, and no more is taken than what they say of the same bytes, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace feeder {

// Where the record says what is asked for; see Keys in feeder/records/keys.py.
struct RecordKeys {
  std::string image, label;
  int64_t label_base;
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
//   offset:           of data in the shard, in bytes
//   max_record_bytes: X:             most of them
Scanned scan_frames(const uint8_t *data, size_t size, int64_t offset, const RecordKeys &keys, uint64_t max_record_bytes,
                    IndexRow *rows, size_t most) noexcept;

}  // namespace feeder
