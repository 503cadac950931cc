#include "baseline.h"

#include <algorithm>

namespace feeder {
namespace {

constexpr int kSide = 8;  // of a block, in samples

int divide_up(int value, int divisor) { return (value + divisor - 1) / divisor; }

bool same(const CodeLengths &a, const CodeLengths &b) { return a.counts == b.counts; }

// The row of chroma that is further from row y than y / 2 is, within the plane.
int further(int y, int height) { return std::clamp(y / 2 + (y % 2 == 0 ? -1 : 1), 0, height - 1); }

}  // namespace

Baseline BaselineDecoder::decode(const uint8_t *data, size_t size, const feeder_header &header, const Window &window,
                                 const Geometry &geometry, Resampler *resampler, uint8_t *out) noexcept {
  if (!read_scan(data, size, &scan_) || scan_.width != header.width || scan_.height != header.height) {
    return Baseline::kNotMine;
  }
  const bool gray = scan_.components == 1;
  // Two columns of chroma or less are repeated, not smoothed.
  if (!gray && scan_.h == 2 && scan_.width <= 4) return Baseline::kNotMine;
  plan_planes(window);
  if (!build_tables()) return Baseline::kNotMine;
  // However much follows, this is all that the blocks can be, were every byte of it stuffed.
  const size_t blocks = static_cast<size_t>(mcu_columns_) * static_cast<size_t>(mcu_rows_ * plan_.blocks);
  const size_t most = std::min(scan_.size, 2 * kLongestBlock * blocks);
  auto *bytes = static_cast<uint8_t *>(bytes_.reserve(most + kPadding));
  const int width = window.right - window.left;
  if (bytes == nullptr || !place_planes() || !resampler->begin(geometry, 0, width, out)) return Baseline::kNoMemory;
  reader_.begin(bytes, remove_stuffing(scan_.data, most, bytes));

  // Damage counts in the rows that libjpeg decodes. With smoothing across rows it reads on before it makes the last
  // pair of rows of an MCU; the rows of blocks of a lone component come in groups of v.
  const int mcu_height = kSide * (gray ? 1 : scan_.v);
  int mcu_rows = divide_up(window.bottom, mcu_height);
  if (gray) mcu_rows = divide_up(mcu_rows, scan_.v) * scan_.v;
  if (!gray && scan_.v == 2 && (window.bottom - 1) % mcu_height >= mcu_height - 2) ++mcu_rows;
  mcu_rows = std::min(mcu_rows, mcu_rows_);

  int y = window.top;
  for (int row = 0; row < mcu_rows; ++row) {
    if (!decode_mcu_row(row)) return Baseline::kNotMine;
    const int luma_end = (row + 1) * mcu_height;
    for (; y < window.bottom && y < luma_end; ++y) {
      if (!gray && scan_.v == 2 && further(y, plane_[1].height) >= (row + 1) * kSide) break;
      emit_row(y, window, resampler->next_row());
      resampler->push_row();
    }
  }
  return reader_.within_data() ? Baseline::kDone : Baseline::kNotMine;
}

void BaselineDecoder::plan_planes(const Window &window) {
  const bool gray = scan_.components == 1;
  const int h = gray ? 1 : scan_.h, v = gray ? 1 : scan_.v;
  mcu_columns_ = divide_up(scan_.width, kSide * h);
  mcu_rows_ = divide_up(scan_.height, kSide * v);
  mcu_left_ = mcu_columns_;
  mcu_right_ = 0;
  plan_.blocks = 0;
  for (int i = 0; i < scan_.components; ++i) {
    Plane &plane = plane_[i];
    const int across = i == 0 ? 1 : h, down = i == 0 ? 1 : v;  // pixels a sample
    plane.h = h / across;
    plane.v = v / down;
    plane.width = divide_up(scan_.width, across);
    plane.height = divide_up(scan_.height, down);
    // Smoothing looks one sample further.
    const int left = window.left / across - (across - 1), right = (window.right - 1) / across + across;
    const int top = window.top / down - (down - 1), bottom = (window.bottom - 1) / down + down;
    plane.left = std::max(0, left) / kSide;
    plane.right = divide_up(std::min(right, plane.width), kSide);
    plane.top = std::max(0, top) / kSide;
    plane.bottom = divide_up(std::min(bottom, plane.height), kSide);
    plane.columns = (plane.right - plane.left) * kSide;
    plane.ring_rows = 2 * kSide * plane.v;
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
  size_t bytes = 0;
  for (int i = 0; i < scan_.components; ++i) {
    plane_[i].stride = (plane_[i].columns + 63) / 64 * 64;
    bytes += static_cast<size_t>(plane_[i].stride) * static_cast<size_t>(plane_[i].ring_rows);
  }
  const auto chroma = scan_.components == 1 ? size_t{0} : static_cast<size_t>(2 * plane_[1].stride);
  auto *at = static_cast<uint8_t *>(samples_.reserve(bytes + 2 * chroma));
  if (at == nullptr) return false;
  for (int i = 0; i < scan_.components; ++i) {
    plane_[i].samples = at;
    at += plane_[i].stride * plane_[i].ring_rows;
  }
  for (uint8_t *&row : chroma_) {
    row = at;
    at += chroma;
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
    for (int y = row * plane.v; y < (row + 1) * plane.v; ++y) {
      const bool within = y >= plane.top && y < plane.bottom;
      needed = needed || within;
      for (int x = mcu_left_ * plane.h; x < (mcu_left_ + 1) * plane.h; ++x, ++target) {
        *target = {within,
                   static_cast<unsigned>(x - plane.left),
                   static_cast<unsigned>(plane.right - plane.left),
                   static_cast<unsigned>(plane.h),
                   scan_.component[i].quant,
                   plane.samples + y * kSide % plane.ring_rows * plane.stride,
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

// A row of chroma at the width of the image, from its column `first` to before `end`; out has room for two samples for
// each of those.
const uint8_t *BaselineDecoder::chroma_row(int component, int y, int first, int end, uint8_t *out) const {
  const Plane &plane = plane_[component];
  const int offset = first - plane.left * kSide;
  if (scan_.v == 1) {
    const uint8_t *row = plane.row(y) + offset;
    if (scan_.h == 1) return row;
    planes_.upsample_h2v1(row, end - first, out);
    return out;
  }
  const uint8_t *near_row = plane.row(y / 2) + offset;
  const uint8_t *far_row = plane.row(further(y, plane.height)) + offset;
  if (scan_.h == 1) {
    planes_.upsample_h1v2(near_row, far_row, end - first, out, y % 2);
  } else {
    planes_.upsample_h2v2(near_row, far_row, end - first, out);
  }
  return out;
}

void BaselineDecoder::emit_row(int y, const Window &window, uint8_t *to) {
  const int width = window.right - window.left;
  const uint8_t *luma = plane_[0].row(y) + window.left - plane_[0].left * kSide;
  if (scan_.components == 1) {
    planes_.gray_to_rgbx(luma, width, to);
    return;
  }
  const int h = scan_.h;
  const int first = std::max(0, window.left / h - (h - 1));
  const int end = std::min(plane_[1].width, (window.right - 1) / h + h);
  const uint8_t *chroma[2];
  for (int i = 0; i < 2; ++i) chroma[i] = chroma_row(i + 1, y, first, end, chroma_[i]) + window.left - first * h;
  planes_.ycc_to_rgbx(luma, chroma[0], chroma[1], width, to);
}

}  // namespace feeder
