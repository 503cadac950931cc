#include "seek.h"

#include <algorithm>
#include <cstring>

#include "huffman.h"

namespace feeder {
namespace {

constexpr uint8_t kFormat = 1;
constexpr size_t kHeadBytes = 8;
constexpr int kPositionBits = 31, kPredictionBits = 11;
constexpr int32_t kMaxPrediction = (1 << (kPredictionBits - 1)) - 1;

uint64_t load(const uint8_t *at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(at[i]) << 8 * i;
  return value;
}

void store(uint64_t value, int bytes, uint8_t *at) {
  for (int i = 0; i < bytes; ++i) at[i] = static_cast<uint8_t>(value >> 8 * i);
}

}  // namespace

void SeekGrid::set(int columns, int rows) noexcept {
  columns_ = columns;
  rows_ = rows;
  row_step_ = (rows + kMaxPoints) / (kMaxPoints + 1);
  per_row_ = row_step_ > 1 ? 1 : std::clamp(columns / 2, 1, (kMaxPoints + 1) / rows);
  stored_ = (rows + row_step_ - 1) / row_step_ * per_row_ - 1;
}

int SeekGrid::mcu(int point) const {
  if (point > stored_) return columns_ * rows_;
  return point / per_row_ * row_step_ * columns_ + column(point % per_row_);
}

int SeekGrid::at_or_before(int mcu) const {
  const int row = mcu / columns_;
  if (row_step_ > 1) return row / row_step_;
  int place = per_row_ - 1;
  while (column(place) > mcu - row * columns_) --place;
  return row * per_row_ + place;
}

void SeekPoints::begin(const Scan *scan, size_t end) noexcept {
  scan_ = scan;
  end_ = end;
  known_ = read_ = 0;
  points_[0] = {8 * scan->start, {}};
  base_ = byte_ = scan->start;
  plain_ = 0;
}

bool SeekPoints::read(const uint8_t *stored) noexcept {
  const int known = static_cast<int>(load(stored + 2, 2));
  if (stored[0] == 0 && stored[1] == 0 && known == 0) return true;
  if (stored[0] != kFormat || stored[1] != 0 || known > grid.end() || load(stored + 4, 4) != scan_->size) return false;
  for (int i = 1; i <= std::min(known, grid.stored()); ++i) {
    uint64_t bits = load(stored + kHeadBytes + 8 * (i - 1), 8);
    Point &point = points_[i];
    point.position = static_cast<size_t>(bits & ((uint64_t{1} << kPositionBits) - 1));
    if (point.position <= points_[i - 1].position || point.position > 8 * end_) return false;
    bits >>= kPositionBits;
    for (int32_t &prediction : point.predictions) {
      // Sign and value of the lowest bits.
      constexpr int kAbove = 32 - kPredictionBits;
      prediction = static_cast<int32_t>(static_cast<uint32_t>(bits) << kAbove) >> kAbove;
      bits >>= kPredictionBits;
    }
  }
  known_ = read_ = known;
  return true;
}

SeekPoint SeekPoints::point(int number) const {
  if (number > grid.stored()) return {end_, 0, {}};
  const Point &point = points_[number];
  SeekPoint result = {point.position / 8, static_cast<uint32_t>(point.position % 8), {}};
  std::copy(point.predictions, point.predictions + kMaxComponents, result.predictions);
  return result;
}

void SeekPoints::learn(size_t base, size_t bit, const uint32_t *predictions) noexcept {
  if (known_ >= grid.stored()) {
    known_ = grid.end();
    return;
  }
  if (base != base_ || bit / 8 < plain_) {
    base_ = byte_ = base;
    plain_ = 0;
  }
  byte_ += stuffed_size(scan_->file + byte_, bit / 8 - plain_);
  plain_ = bit / 8;
  Point point = {8 * byte_ + bit % 8, {}};
  bool fits = point.position >> kPositionBits == 0;
  for (int i = 0; i < scan_->components; ++i) {
    point.predictions[i] = static_cast<int32_t>(predictions[i]);
    fits = fits && point.predictions[i] <= kMaxPrediction && point.predictions[i] >= -kMaxPrediction - 1;
  }
  if (fits) points_[++known_] = point;
}

bool SeekPoints::continue_from(const SeekPoints &before) noexcept {
  if (known_ < before.known_) return false;
  for (int i = 1; i <= std::min(before.known_, grid.stored()); ++i) {
    const Point &a = points_[i], &b = before.points_[i];
    if (a.position != b.position || !std::equal(a.predictions, a.predictions + kMaxComponents, b.predictions)) {
      return false;
    }
  }
  read_ = before.read_;
  return true;
}

bool SeekPoints::write(uint8_t *stored) const noexcept {
  if (known_ <= read_) return false;
  stored[0] = kFormat;
  stored[1] = 0;
  store(static_cast<uint64_t>(known_), 2, stored + 2);
  store(scan_->size, 4, stored + 4);
  for (int i = 1; i <= std::min(known_, grid.stored()); ++i) {
    uint64_t bits = 0;
    for (int c = kMaxComponents - 1; c >= 0; --c) {
      const auto prediction = static_cast<uint32_t>(points_[i].predictions[c]);
      bits = bits << kPredictionBits | (prediction & ((1U << kPredictionBits) - 1));
    }
    store(bits << kPositionBits | points_[i].position, 8, stored + kHeadBytes + 8 * (i - 1));
  }
  std::memset(stored + kHeadBytes + 8 * std::min(known_, grid.stored()), 0,
              8 * static_cast<size_t>(kMaxPoints - std::min(known_, grid.stored())));
  return true;
}

}  // namespace feeder
