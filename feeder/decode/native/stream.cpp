#include "stream.h"

#include <algorithm>
#include <climits>

namespace feeder {

bool Stream::begin(const Scan *scan, const McuPlan *plan, int mcu, const SeekPoint &from,
                   const SeekPoint &end) noexcept {
  data_ = static_cast<uint8_t *>(bytes_.reserve(end.byte - from.byte + kPadding));
  if (data_ == nullptr) return false;
  scan_ = scan;
  plan_ = plan;
  points_ = nullptr;
  end_ = end;
  mcu_ = mcu;
  const int interval = scan->restart_interval;
  next_restart_ = interval == 0 ? INT_MAX : (mcu / interval + 1) * interval;
  load(from.byte);
  reader_.begin(plan_, data_, plain_, from.bit);
  for (int i = 0; i < kMaxComponents; ++i) reader_.predictions[i] = static_cast<uint32_t>(from.predictions[i]);
  plan_stop();
  return true;
}

void Stream::teach(SeekPoints *points, int from) noexcept {
  points_ = points;
  next_point_ = from + 1;
  plan_stop();
}

bool Stream::skip_to(int mcu) noexcept {
  while (mcu_ < mcu) {
    if (mcu_ == stop_ && !arrive()) return false;
    const int until = std::min(mcu, stop_);
    if (!reader_.skip(until - mcu_)) return false;
    mcu_ = until;
  }
  return true;
}

int Stream::decode(int most, int16_t *coefficients, uint8_t *lasts) noexcept {
  const int mcus = next_run(most);
  return mcus != 0 && reader_.decode(mcus, coefficients, lasts) ? mcus : 0;
}

int Stream::begin_run(int most, int16_t *coefficients, uint8_t *lasts) noexcept {
  const int mcus = next_run(most);
  return mcus != 0 && reader_.begin_run(mcus, coefficients, lasts) ? mcus : 0;
}

// Moves on by as many MCUs, up to `most`, as come before something else is due; 0 for damage.
int Stream::next_run(int most) noexcept {
  if (mcu_ == stop_ && !arrive()) return 0;
  const int mcus = std::min(most, stop_ - mcu_);
  mcu_ += mcus;
  return mcus;
}

bool Stream::at_end() noexcept {
  if (mcu_ == stop_ && !arrive()) return false;
  if (reader_.position(data_) != bits_ || behind_ != end_.byte) return false;
  for (int i = 0; i < scan_->components; ++i) {
    if (reader_.predictions[i] != static_cast<uint32_t>(end_.predictions[i])) return false;
  }
  return true;
}

void Stream::finish() noexcept {
  if (points_ != nullptr && mcu_ == stop_ && mcu_ != next_restart_ && sound()) learn();
}

bool Stream::arrive() noexcept {
  if (!sound() || (mcu_ == next_restart_ && !restart())) return false;
  if (points_ != nullptr && mcu_ == points_->grid.mcu(next_point_)) learn();
  plan_stop();
  return true;
}

// Passes the marker behind an interval. libjpeg allows nothing but the rest of a byte between them.
bool Stream::restart() noexcept {
  const int number = next_restart_ / scan_->restart_interval - 1;
  const uint8_t *marker = scan_->file + behind_;
  if (bits_ - reader_.position(data_) >= 8 || end_.byte - behind_ < 2) return false;
  if (marker[0] != 0xFF || marker[1] != 0xD0 + (number & 7)) return false;
  load(behind_ + 2);
  reader_.begin(plan_, data_, plain_, 0);
  next_restart_ += scan_->restart_interval;
  return true;
}

void Stream::learn() noexcept {
  if (points_->known() == next_point_ - 1) points_->learn(base_, reader_.position(data_), reader_.predictions);
  ++next_point_;
}

// The data from a byte of the file on, up to the end or a marker.
void Stream::load(size_t byte) noexcept {
  const Unstuffed found = remove_stuffing(scan_->file + byte, end_.byte - byte, data_);
  base_ = byte;
  behind_ = byte + found.end;
  plain_ = found.size;
  bits_ = 8 * plain_;
  if (behind_ == end_.byte && end_.bit != 0) {
    data_[plain_++] = scan_->file[behind_];
    bits_ += end_.bit;
  }
}

void Stream::plan_stop() noexcept {
  stop_ = next_restart_;
  if (points_ != nullptr && next_point_ <= points_->grid.end()) {
    stop_ = std::min(stop_, points_->grid.mcu(next_point_));
  }
}

}  // namespace feeder
