// Seek points: where in a file MCUs of its scan begin, so that decoding can begin there too.
//
// Which MCUs have a point is a function of the scan's size alone. Points are learned in the order of the data, by
// decoding it. So what is known is always a prefix of them, and says that the data up to there is undamaged.
#pragma once

#include <cstddef>
#include <cstdint>

#include "scan.h"

namespace feeder {

// How they are stored, little-endian: a byte 1, a byte 0, 16 bits for the number of the last known point, 32 bits for
// the size of the file; then 64 bits for each point from number 1 on: 31 for its position in bits of the file, 11 for
// the DC prediction of each component. All bytes zero: nothing is known.
constexpr size_t kSeekBytes = 1000;
constexpr int kMaxPoints = (kSeekBytes - 8) / 8;

// Points by number: 0 is the start of the scan, 1 to stored() take bytes, and end() is the end of the scan.
class SeekGrid {
 public:
  // For a scan of so many MCUs across and down.
  void set(int columns, int rows) noexcept;

  int stored() const { return stored_; }
  int end() const { return stored_ + 1; }

  // The MCU that a point is before, by its number in the scan.
  int mcu(int point) const;

  // The last point that is not behind an MCU.
  int at_or_before(int mcu) const;

 private:
  // In the left half of a row: that is where most windows begin.
  int column(int place) const { return columns_ * place / (2 * per_row_); }

  int columns_ = 1, rows_ = 1;
  int row_step_ = 1;  // rows from one with points to the next
  int per_row_ = 1;   // points in such a row
  int stored_ = 0;
};

struct SeekPoint {
  size_t byte;   // of the file, the first one with bits of the MCU
  uint32_t bit;  // of that byte, from its top
  int32_t predictions[kMaxComponents];
};

class SeekPoints {
 public:
  SeekGrid grid;

  // Knows nothing but the start of the scan, which does not go on behind byte `end` of the file. *scan is kept.
  void begin(const Scan *scan, size_t end) noexcept;

  // Takes what is stored, after begin(). False, and nothing is known, where it cannot be of this scan of the file.
  bool read(const uint8_t *stored) noexcept;

  // The last known point. grid.end() says that all of the scan is sound.
  int known() const { return known_; }

  // A known point; the end has neither bit nor predictions.
  SeekPoint point(int number) const;

  // Learns the point behind known(), if it can be stored. The MCU begins at a bit of the data without its stuffing,
  // counted from byte `base` of the file, which is no stuffing.
  void learn(size_t base, size_t bit, const uint32_t *predictions) noexcept;

  // Whether all that `before` knew is known, and the same; if so, what it had read counts as read here too. For the same
  // scan.
  bool continue_from(const SeekPoints &before) noexcept;

  // Stores what is known. False, and nothing is stored, where that is no more than was read.
  bool write(uint8_t *stored) const noexcept;

 private:
  struct Point {
    size_t position;  // in bits of the file
    int32_t predictions[kMaxComponents];
  };

  const Scan *scan_ = nullptr;
  int known_ = 0, read_ = 0;
  size_t base_ = 0, plain_ = 0, byte_ = 0;  // the last byte without stuffing, from base on, and where it is in the file
  size_t end_ = 0;
  Point points_[kMaxPoints + 1];
};

}  // namespace feeder
