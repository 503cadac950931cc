#include "baseline.h"

#include <algorithm>
#include <cstring>

namespace feeder {
namespace {

constexpr int kSide = 8;  // of a block, in samples

int divide_up(int value, int divisor) { return (value + divisor - 1) / divisor; }

// One of the rows of an image, another one for other windows.
uint32_t choose(const Window &window, size_t size) {
  uint32_t mixed = static_cast<uint32_t>(size);
  for (const int side : {window.left, window.top, window.right, window.bottom}) {
    mixed = (mixed ^ static_cast<uint32_t>(side)) * 0x9E3779B1U;
  }
  return mixed >> 16;
}

bool same(const CodeLengths &a, const CodeLengths &b) { return a.counts == b.counts; }

}  // namespace

Baseline BaselineDecoder::decode(const uint8_t *data, size_t size, const feeder_header &header, const Window &window,
                                 PlaneSink *sink, Seek *seek) noexcept {
  if (!read_scan(data, size, &scan_) || scan_.width != header.width || scan_.height != header.height) {
    return Baseline::kNotMine;
  }
  if (!plan_scan()) return Baseline::kNotMine;
  plan_planes(window);
  if (!place_planes()) return Baseline::kNoMemory;
  return decode_scan(rows_to_read(), choose(window, size), sink, seek);
}

Baseline BaselineDecoder::learn(const uint8_t *data, size_t size, Seek *seek) noexcept {
  if (!read_scan(data, size, &scan_) || !plan_scan()) return Baseline::kNotMine;
  needed_top_ = needed_bottom_ = 0;
  return decode_scan(mcu_rows_, 0, nullptr, seek);
}

// Decodes the needed ones of the first `rows` rows of MCUs, with seek points, and then without if they turn out wrong.
Baseline BaselineDecoder::decode_scan(int rows, uint32_t choice, PlaneSink *sink, Seek *seek) {
  *seek = {seek->stored, false, false, false};
  points_.begin(&scan_, scan_end_);
  if (seek->stored != nullptr) seek->refused = !points_.read(seek->stored);
  seek->used = rows_known() > 0;
  const bool doubtful = points_.known() > 0;
  Baseline result = decode_rows(rows, choice, sink);
  if (result == Baseline::kNotMine && doubtful) {
    // Either the points are wrong, or what lies behind them is damaged.
    const SeekPoints before = points_;
    points_.begin(&scan_, scan_end_);
    result = decode_rows(rows, choice, sink);
    seek->used = false;
    seek->refused = !points_.continue_from(before);
  }
  if (seek->refused) std::memset(seek->stored, 0, kSeekBytes);
  if (seek->stored != nullptr) seek->grew = points_.write(seek->stored);
  return result;
}

Baseline BaselineDecoder::decode_rows(int rows, uint32_t choice, PlaneSink *sink) {
  transforms_ = sink != nullptr;
  if (sink != nullptr && !sink->begin(layout_)) return Baseline::kNoMemory;
  const int known = std::min(rows, rows_known());
  const Baseline result = decode_known(needed_top_, std::min(known, needed_bottom_), choice, sink);
  return result == Baseline::kDone ? decode_in_order(known, rows, sink) : result;
}

// Decodes rows of MCUs that lie before the last known point, each from the last point before what is needed of it. Rows
// between two points make a segment.
Baseline BaselineDecoder::decode_known(int top, int bottom, uint32_t choice, PlaneSink *sink) {
  if (top >= bottom) return Baseline::kDone;
  // One segment is decoded to its end, to see whether that is where it should be.
  const int checked = end_point(top + static_cast<int>(choice % static_cast<uint32_t>(bottom - top)));
  int next = top, pushed = top;
  bool done[kRoom] = {};
  for (Lane &lane : lane_) lane.row = lane.end_row = lane.run = 0;
  while (pushed < bottom) {
    for (Lane &lane : lane_) {
      if (lane.run != 0) continue;
      if (lane.row == lane.end_row && next < bottom && next < pushed + kRoom) {
        lane.row = next;
        lane.end_point = end_point(next);
        while (next < bottom && end_point(next) == lane.end_point) ++next;
        lane.end_row = next;
        const int point = points_.grid.at_or_before(lane.row * mcu_columns_ + mcu_left_);
        if (!begin_stream(&lane.stream, point, lane.end_point)) return Baseline::kNoMemory;
      }
      if (lane.row < lane.end_row && lane.row < pushed + kRoom && !(begin_row(&lane) && begin_run(&lane))) {
        return Baseline::kNotMine;
      }
    }
    Lane &a = lane_[0], &b = lane_[1];
    int finished;
    if (a.run != 0 && b.run != 0) {
      finished = finish_either(a.stream.reader(), b.stream.reader());
    } else {
      finished = a.run != 0 ? 0 : 1;
      if (!lane_[finished].stream.reader()->finish_run()) finished = -1;
    }
    if (finished < 0) return Baseline::kNotMine;
    Lane &lane = lane_[finished];
    transform_run(&lane);
    if (lane.columns > 0) {
      if (!begin_run(&lane)) return Baseline::kNotMine;
      continue;
    }
    lane.run = 0;
    done[lane.row % kRoom] = true;
    if (++lane.row == lane.end_row && !end_segment(&lane, lane.end_point == checked)) return Baseline::kNotMine;
    for (; done[pushed % kRoom]; ++pushed) {
      done[pushed % kRoom] = false;
      push_rows(pushed, sink);
    }
  }
  return Baseline::kDone;
}

// Decodes all rows of MCUs from one on, and learns points.
Baseline BaselineDecoder::decode_in_order(int top, int bottom, PlaneSink *sink) {
  if (top >= bottom) return Baseline::kDone;
  Lane &lane = lane_[0];
  Stream &stream = lane.stream;
  const int point = points_.grid.at_or_before(top * mcu_columns_);
  if (!begin_stream(&stream, point, points_.grid.end())) return Baseline::kNoMemory;
  stream.teach(&points_, point);
  for (int row = top; row < bottom; ++row) {
    if (row >= needed_top_ && row < needed_bottom_) {
      lane.row = row;
      if (!begin_row(&lane)) return Baseline::kNotMine;
      while (lane.columns > 0) {
        lane.run = stream.decode(longest_run(lane), lane.coefficients, lane.lasts);
        if (lane.run == 0) return Baseline::kNotMine;
        lane.columns -= lane.run;
        transform_run(&lane);
      }
      push_rows(row, sink);
    }
    if (!stream.skip_to((row + 1) * mcu_columns_)) return Baseline::kNotMine;
  }
  stream.finish();
  return stream.sound() ? Baseline::kDone : Baseline::kNotMine;
}

// The first point that is not before the end of what is needed of a row of MCUs.
int BaselineDecoder::end_point(int row) const {
  return points_.grid.at_or_before(row * mcu_columns_ + mcu_right_ - 1) + 1;
}

bool BaselineDecoder::begin_stream(Stream *stream, int point, int end) {
  return stream->begin(&scan_, &plan_, points_.grid.mcu(point), points_.point(point), points_.point(end));
}

// Whether a segment ended where it may, or where it must, which takes no more decoding where the point is at hand.
bool BaselineDecoder::end_segment(Lane *lane, bool checked) {
  Stream &stream = lane->stream;
  const int end = points_.grid.mcu(lane->end_point);
  if (checked && !stream.skip_to(end)) return false;
  return stream.mcu() < end || lane->end_point == points_.grid.end() ? stream.sound() : stream.at_end();
}

// Rows of MCUs in which damage counts, because libjpeg decodes them for the window.
int BaselineDecoder::rows_to_read() const {
  // Those of a lone component come in groups of v.
  if (scan_.components == 1) return std::min(divide_up(needed_bottom_, scan_.v) * scan_.v, mcu_rows_);
  return needed_bottom_;
}

// False where libjpeg has to decide.
bool BaselineDecoder::plan_scan() {
  const bool gray = scan_.components == 1;
  const int h = gray ? 1 : scan_.h, v = gray ? 1 : scan_.v;
  mcu_columns_ = divide_up(scan_.width, kSide * h);
  mcu_rows_ = divide_up(scan_.height, kSide * v);
  points_.grid.set(mcu_columns_, mcu_rows_);
  plan_.blocks = 0;
  for (int i = 0; i < scan_.components; ++i) {
    plane_[i].h = i == 0 ? h : 1;
    plane_[i].v = i == 0 ? v : 1;
    for (int block = 0; block < plane_[i].h * plane_[i].v; ++block) {
      plan_.block[plan_.blocks++] = {&dc_[i], &ac_[i], i};
    }
  }
  // However much follows, this is all that the blocks can be, were every byte of it stuffed, with a marker for each MCU.
  const size_t mcus = static_cast<size_t>(mcu_columns_) * static_cast<size_t>(mcu_rows_);
  const size_t most = mcus * (2 * kLongestBlock * static_cast<size_t>(plan_.blocks) + 2);
  scan_end_ = scan_.start + std::min(scan_.size - scan_.start, most);
  return build_tables();
}

void BaselineDecoder::plan_planes(const Window &window) {
  const bool gray = scan_.components == 1;
  const int h = plane_[0].h, v = plane_[0].v;
  layout_ = {};
  layout_.components = scan_.components;
  layout_.ycc = !gray;
  layout_.smooth = true;
  layout_.width = scan_.width;
  layout_.height = scan_.height;
  for (int i = 0; i < scan_.components; ++i) {
    const int across = i == 0 ? 1 : h, down = i == 0 ? 1 : v;
    layout_.plane[i] = {divide_up(scan_.width, across), divide_up(scan_.height, down), across, down, {}};
  }
  set_regions(window, &layout_);

  mcu_left_ = mcu_columns_;
  mcu_right_ = 0;
  needed_top_ = mcu_rows_;
  needed_bottom_ = 0;
  for (int i = 0; i < scan_.components; ++i) {
    const PlaneRegion &region = layout_.plane[i].region;
    Plane &plane = plane_[i];
    plane.left = region.left / kSide;
    plane.right = divide_up(region.right, kSide);
    plane.top = region.top / kSide;
    plane.bottom = divide_up(region.bottom, kSide);
    mcu_left_ = std::min(mcu_left_, plane.left / plane.h);
    mcu_right_ = std::max(mcu_right_, divide_up(plane.right, plane.h));
    needed_top_ = std::min(needed_top_, plane.top / plane.v);
    needed_bottom_ = std::max(needed_bottom_, divide_up(plane.bottom, plane.v));
  }
}

bool BaselineDecoder::build_tables() {
  int table[kMaxComponents] = {};
  for (int i = 0; i < scan_.components; ++i) {
    const ScanComponent &component = scan_.component[i];
    // Cb and Cr share theirs as a rule.
    table[i] = i;
    for (int before = i - 1; before >= 0; --before) {
      if (same(scan_.component[before].dc, component.dc) && same(scan_.component[before].ac, component.ac)) {
        table[i] = table[before];
      }
    }
    if (table[i] == i && (!dc_[i].build(component.dc) || !ac_[i].build(component.ac))) return false;
  }
  for (int i = 0; i < plan_.blocks; ++i) {
    const int used = table[plan_.block[i].component];
    plan_.block[i].dc = &dc_[used];
    plan_.block[i].ac = &ac_[used];
  }
  return true;
}

bool BaselineDecoder::place_planes() {
  size_t bytes = kRowPadding;
  for (int i = 0; i < scan_.components; ++i) {
    plane_[i].stride = ((plane_[i].right - plane_[i].left) * kSide + 63) / 64 * 64;
    bytes += static_cast<size_t>(plane_[i].stride * plane_[i].v * kSide * kRoom);
  }
  auto *at = static_cast<uint8_t *>(samples_.reserve(bytes));
  if (at == nullptr) return false;
  for (int i = 0; i < scan_.components; ++i) {
    plane_[i].samples = at;
    at += plane_[i].stride * plane_[i].v * kSide * kRoom;
  }
  return true;
}

// Begins what is needed of the lane's row of MCUs. False for damage.
bool BaselineDecoder::begin_row(Lane *lane) {
  Target *target = lane->target;
  for (int i = 0; i < scan_.components; ++i) {
    const Plane &plane = plane_[i];
    uint8_t *const samples = plane.samples + lane->row % kRoom * plane.v * kSide * plane.stride;
    for (int down = 0; down < plane.v; ++down) {
      const int y = lane->row * plane.v + down;
      for (int x = mcu_left_ * plane.h; x < (mcu_left_ + 1) * plane.h; ++x, ++target) {
        *target = {y >= plane.top && y < plane.bottom,
                   static_cast<unsigned>(x - plane.left),
                   static_cast<unsigned>(plane.right - plane.left),
                   static_cast<unsigned>(plane.h),
                   scan_.component[i].quant,
                   samples + down * kSide * plane.stride,
                   plane.stride};
      }
    }
  }
  lane->columns = mcu_right_ - mcu_left_;
  return lane->stream.skip_to(lane->row * mcu_columns_ + mcu_left_);
}

bool BaselineDecoder::begin_run(Lane *lane) {
  lane->run = lane->stream.begin_run(longest_run(*lane), lane->coefficients, lane->lasts);
  lane->columns -= lane->run;
  return lane->run != 0;
}

void BaselineDecoder::transform_run(Lane *lane) {
  if (!transforms_) return;
  const int blocks = plan_.blocks;
  const int16_t *block = lane->coefficients;
  const uint8_t *last = lane->lasts;
  for (int mcu = 0; mcu < lane->run; ++mcu) {
    for (int i = 0; i < blocks; ++i, block += kBlockSamples, ++last) {
      Target &target = lane->target[i];
      const unsigned column = target.column;
      target.column += target.step;
      if (!target.needed || column >= target.columns) continue;
      uint8_t *const samples = target.samples + column * kSide;
      if (*last == 0) {
        planes_.idct_dc(block[0], target.quant[0], samples, target.stride);
      } else {
        planes_.idct_islow(block, target.quant, samples, target.stride);
      }
    }
  }
}

void BaselineDecoder::push_rows(int row, PlaneSink *sink) const {
  if (sink == nullptr) return;
  for (int i = 0; i < scan_.components; ++i) {
    const PlaneRegion &region = layout_.plane[i].region;
    const Plane &plane = plane_[i];
    const int rows = plane.v * kSide, first = row * rows;
    const int end = std::min(first + rows, region.bottom);
    for (int y = std::max(first, region.top); y < end; ++y) {
      const int y_of_room = row % kRoom * rows + y - first;
      sink->push(i, plane.samples + y_of_room * plane.stride + region.left - plane.left * kSide);
    }
  }
}

}  // namespace feeder
