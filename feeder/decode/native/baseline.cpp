#include "baseline.h"

#include <algorithm>

namespace feeder {
namespace {

constexpr int kSide = 8;  // of a block, in samples

int divide_up(int value, int divisor) { return (value + divisor - 1) / divisor; }

bool same(const CodeLengths &a, const CodeLengths &b) { return a.counts == b.counts; }

}  // namespace

Baseline BaselineDecoder::decode(const uint8_t *data, size_t size, const feeder_header &header, const Window &window,
                                 PlaneSink *sink) noexcept {
  if (!read_scan(data, size, &scan_) || scan_.width != header.width || scan_.height != header.height) {
    return Baseline::kNotMine;
  }
  plan_planes(window);
  if (!build_tables()) return Baseline::kNotMine;
  // However much follows, this is all that the blocks can be, were every byte of it stuffed.
  const size_t blocks = static_cast<size_t>(mcu_columns_) * static_cast<size_t>(mcu_rows_ * plan_.blocks);
  const size_t most = std::min(scan_.size, 2 * kLongestBlock * blocks);
  auto *bytes = static_cast<uint8_t *>(bytes_.reserve(most + kPadding));
  if (bytes == nullptr || !place_planes() || !sink->begin(layout_)) return Baseline::kNoMemory;
  reader_.begin(bytes, remove_stuffing(scan_.data, most, bytes));

  // Damage counts in the rows that libjpeg decodes: those of a lone component come in groups of v.
  int mcu_rows = 0;
  for (int i = 0; i < scan_.components; ++i) mcu_rows = std::max(mcu_rows, divide_up(plane_[i].bottom, plane_[i].v));
  if (scan_.components == 1) mcu_rows = std::min(divide_up(mcu_rows, scan_.v) * scan_.v, mcu_rows_);
  // With smoothing across rows it reads on before it makes the last pair of rows of an MCU.
  const int mcu_height = kSide * scan_.v;
  if (scan_.components == 3 && scan_.v == 2 && (window.bottom - 1) % mcu_height >= mcu_height - 2) {
    mcu_rows = std::min(divide_up(window.bottom, mcu_height) + 1, mcu_rows_);
  }
  for (int row = 0; row < mcu_rows; ++row) {
    if (!decode_mcu_row(row)) return Baseline::kNotMine;
    push_rows(row, sink);
  }
  return reader_.within_data() ? Baseline::kDone : Baseline::kNotMine;
}

void BaselineDecoder::plan_planes(const Window &window) {
  const bool gray = scan_.components == 1;
  const int h = gray ? 1 : scan_.h, v = gray ? 1 : scan_.v;
  mcu_columns_ = divide_up(scan_.width, kSide * h);
  mcu_rows_ = divide_up(scan_.height, kSide * v);
  layout_ = {};
  layout_.components = scan_.components;
  layout_.ycc = !gray;
  layout_.width = scan_.width;
  layout_.height = scan_.height;
  for (int i = 0; i < scan_.components; ++i) {
    const int across = i == 0 ? 1 : h, down = i == 0 ? 1 : v;
    layout_.plane[i] = {divide_up(scan_.width, across), divide_up(scan_.height, down), across, down, {}};
  }
  set_regions(window, &layout_);

  mcu_left_ = mcu_columns_;
  mcu_right_ = 0;
  plan_.blocks = 0;
  for (int i = 0; i < scan_.components; ++i) {
    const PlaneRegion &region = layout_.plane[i].region;
    Plane &plane = plane_[i];
    plane.h = h / layout_.plane[i].across;
    plane.v = v / layout_.plane[i].down;
    plane.left = region.left / kSide;
    plane.right = divide_up(region.right, kSide);
    plane.top = region.top / kSide;
    plane.bottom = divide_up(region.bottom, kSide);
    mcu_left_ = std::min(mcu_left_, plane.left / plane.h);
    mcu_right_ = std::max(mcu_right_, divide_up(plane.right, plane.h));
    for (int block = 0; block < plane.h * plane.v; ++block) {
      plan_.block[plan_.blocks++] = {&dc_[i], &ac_[i], i};
    }
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
    bytes += static_cast<size_t>(plane_[i].stride * plane_[i].v * kSide);
  }
  auto *at = static_cast<uint8_t *>(samples_.reserve(bytes));
  if (at == nullptr) return false;
  for (int i = 0; i < scan_.components; ++i) {
    plane_[i].samples = at;
    at += plane_[i].stride * plane_[i].v * kSide;
  }
  return true;
}

bool BaselineDecoder::decode_mcu_row(int row) {
  if (!aim(row)) return skip_mcus(&reader_, plan_, mcu_columns_);
  if (!skip_mcus(&reader_, plan_, mcu_left_)) return false;
  for (int column = mcu_left_; column < mcu_right_; ++column) {
    if (!decode_mcu(&reader_, plan_, coefficients_, lasts_)) return false;
    transform_mcu();
  }
  return skip_mcus(&reader_, plan_, mcu_columns_ - mcu_right_);
}

// Sets the targets to the first MCU of a row that the window needs; false when it needs none.
bool BaselineDecoder::aim(int row) {
  bool needed = false;
  Target *target = target_;
  for (int i = 0; i < scan_.components; ++i) {
    const Plane &plane = plane_[i];
    for (int down = 0; down < plane.v; ++down) {
      const int y = row * plane.v + down;
      const bool within = y >= plane.top && y < plane.bottom;
      needed = needed || within;
      for (int x = mcu_left_ * plane.h; x < (mcu_left_ + 1) * plane.h; ++x, ++target) {
        *target = {within,
                   static_cast<unsigned>(x - plane.left),
                   static_cast<unsigned>(plane.right - plane.left),
                   static_cast<unsigned>(plane.h),
                   scan_.component[i].quant,
                   plane.samples + down * kSide * plane.stride,
                   plane.stride};
      }
    }
  }
  return needed;
}

void BaselineDecoder::transform_mcu() {
  const int blocks = plan_.blocks;
  for (int i = 0; i < blocks; ++i) {
    Target &target = target_[i];
    const unsigned column = target.column;
    target.column += target.step;
    if (!target.needed || column >= target.columns) continue;
    uint8_t *const samples = target.samples + column * kSide;
    const int16_t *const block = coefficients_ + i * kBlockSamples;
    if (lasts_[i] == 0) {
      planes_.idct_dc(block[0], target.quant[0], samples, target.stride);
    } else {
      planes_.idct_islow(block, target.quant, samples, target.stride);
    }
  }
}

void BaselineDecoder::push_rows(int row, PlaneSink *sink) const {
  for (int i = 0; i < scan_.components; ++i) {
    const PlaneRegion &region = layout_.plane[i].region;
    const Plane &plane = plane_[i];
    const int rows = plane.v * kSide, first = row * rows;
    const int end = std::min(first + rows, region.bottom);
    for (int y = std::max(first, region.top); y < end; ++y) {
      sink->push(i, plane.samples + (y - first) * plane.stride + region.left - plane.left * kSide);
    }
  }
}

}  // namespace feeder
