#include "resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace feeder {
namespace {

// Above this vertical scale the ring of source rows gives way to 32-bit sums: weights would be too small for Q14
// products of 16 bits, and the ring too large for the cache.
constexpr double kWideScale = 16;
constexpr int kWideWeightBits = 22;
// Outputs that one source row adds to when shrinking: at most two radii of the cubic, and one for rounding.
constexpr int kWideRows = 6;

constexpr double kCubicA = -0.5;  // Pillow's

double triangle(double distance) { return distance < 1.0 ? 1.0 - distance : 0.0; }

double cubic(double distance) {
  if (distance < 1.0) return ((kCubicA + 2.0) * distance - (kCubicA + 3.0)) * distance * distance + 1.0;
  if (distance < 2.0) return (((distance - 5.0) * distance + 8.0) * distance - 4.0) * kCubicA;
  return 0.0;
}

struct AxisGeometry {
  int in, out;
  double box, length;
  feeder_filter filter;
  bool antialias;
};

double filter_scale(const AxisGeometry &axis) {
  return axis.antialias ? std::max(1.0, axis.length / axis.out) : 1.0;
}

int most_taps(const AxisGeometry &axis) {
  const double radius = axis.filter == FEEDER_BILINEAR ? 1.0 : 2.0;
  return std::min(axis.in, static_cast<int>(std::ceil(radius * filter_scale(axis))) * 2 + 1);
}

// Fills taps, offsets and weights. Tap positions and weights are Pillow's; the weights of an output are rounded so
// that their running sum is, and they add up to 1 << bits exactly.
template <feeder_filter filter>
void weigh(const AxisGeometry &axis, int bits, double *scratch, Axis *result) {
  const double scale = axis.length / axis.out;
  const double stretch = filter_scale(axis);
  const double inverse = 1.0 / stretch;
  const double support = (filter == FEEDER_BILINEAR ? 1.0 : 2.0) * stretch;
  const double one = static_cast<double>(1 << bits);
  // Added before the cast to int, which would otherwise round what is negative upwards.
  const int32_t lift = 1 << bits;
  int32_t offset = 0;
  int most = 0;
  for (int i = 0; i < axis.out; ++i) {
    const double center = axis.box + (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int count = std::max(1, std::min(axis.in, static_cast<int>(center + support + 0.5)) - first);
    double total = 0.0;
    double position = first - center + 0.5;
    for (int k = 0; k < count; ++k, position += 1.0) {
      const double distance = std::fabs(position) * inverse;
      scratch[k] = filter == FEEDER_BILINEAR ? triangle(distance) : cubic(distance);
      total += scratch[k];
    }
    if (total == 0.0) scratch[0] = total = 1.0;
    const double norm = one / total;
    int32_t before = lift;
    double sum = 0.5 + lift;
    for (int k = 0; k < count; ++k) {
      sum += scratch[k] * norm;
      const int32_t now = k + 1 == count ? 2 * lift : static_cast<int32_t>(sum);
      result->weights[offset + k] = now - before;
      before = now;
    }
    result->taps[i] = {first, count};
    result->offsets[i] = offset;
    offset += count;
    most = std::max(most, count);
  }
  result->most = most;
}

void weigh_axis(const AxisGeometry &axis, int bits, double *scratch, Axis *result) {
  if (axis.filter == FEEDER_BILINEAR) {
    weigh<FEEDER_BILINEAR>(axis, bits, scratch, result);
  } else {
    weigh<FEEDER_BICUBIC>(axis, bits, scratch, result);
  }
}

// Turns taps at pixels into taps at pairs of pixels, in mirrored order where the output is flipped.
void pair_up(const Axis &pixels, int outputs, bool flip, Taps *taps, uint32_t *pairs) {
  for (int x = 0; x < outputs; ++x) {
    const int from = flip ? outputs - 1 - x : x;
    const Taps tap = pixels.taps[from];
    const int32_t *weights = pixels.weights + pixels.offsets[from];
    const int first = tap.first / 2, last = (tap.first + tap.count - 1) / 2;
    taps[x] = {first, last - first + 1};
    const int lead = tap.first & 1;
    for (int k = -lead; k < tap.count; k += 2) {
      const uint32_t left = k < 0 ? 0U : static_cast<uint32_t>(weights[k]) & 0xFFFFU;
      const uint32_t right = k + 1 < tap.count ? static_cast<uint32_t>(weights[k + 1]) & 0xFFFFU : 0U;
      *pairs++ = left | right << 16;
    }
  }
}

// Cuts one piece of memory into aligned parts.
class Parts {
 public:
  template <typename T>
  void add(T **part, size_t count) {
    if (base_ != nullptr) *part = reinterpret_cast<T *>(base_ + used_);
    used_ += (count * sizeof(T) + 63) / 64 * 64;
  }
  size_t used() const { return used_; }
  void restart(void *base) {
    base_ = static_cast<unsigned char *>(base);
    used_ = 0;
  }

 private:
  unsigned char *base_ = nullptr;
  size_t used_ = 0;
};

}  // namespace

bool Resampler::begin(const Geometry &geometry, int margin, int row_pixels, uint8_t *out) noexcept {
  geometry_ = geometry;
  margin_ = margin;
  out_ = out;
  source_row_ = output_row_ = group_rows_ = 0;
  blocks_ = (geometry.in_width + kBlockPixels - 1) / kBlockPixels;

  const AxisGeometry across = {geometry.in_width, geometry.out_width, geometry.box_x,
                               geometry.box_width, geometry.filter,    geometry.antialias};
  const AxisGeometry down = {geometry.in_height, geometry.out_height, geometry.box_y,
                             geometry.box_height, geometry.filter,    geometry.antialias};
  const auto column_taps = static_cast<size_t>(most_taps(across));
  const auto row_taps = static_cast<size_t>(most_taps(down));
  const auto out_width = static_cast<size_t>(geometry.out_width);
  const auto out_height = static_cast<size_t>(geometry.out_height);
  wide_ = geometry.antialias && geometry.box_height > kWideScale * geometry.out_height;

  double *weights = nullptr;
  Axis pixels;
  Parts parts;
  const auto lay_out_tables = [&] {
    parts.add(&weights, std::max(column_taps, row_taps) + 1);
    parts.add(&pixels.taps, out_width);
    parts.add(&pixels.offsets, out_width);
    parts.add(&pixels.weights, out_width * column_taps);
    parts.add(&columns_.taps, out_width);
    parts.add(&columns_.pairs, out_width * (column_taps / 2 + 1));
    parts.add(&rows_.taps, out_height);
    parts.add(&rows_.offsets, out_height);
    parts.add(&rows_.weights, out_height * row_taps);
    parts.add(&row_weights_, wide_ ? 0 : out_height * row_taps);
    parts.add(&tap_rows_, row_taps);
  };
  lay_out_tables();
  void *memory = tables_.reserve(parts.used());
  if (memory == nullptr) return false;
  parts.restart(memory);
  lay_out_tables();

  weigh_axis(across, kWeightBits, weights, &pixels);
  pair_up(pixels, geometry.out_width, geometry.flip, columns_.taps, columns_.pairs);
  weigh_axis(down, wide_ ? kWideWeightBits : kWeightBits, weights, &rows_);
  if (!wide_) {
    const Taps last = rows_.taps[out_height - 1];
    const int32_t used = rows_.offsets[out_height - 1] + last.count;
    for (int32_t k = 0; k < used; ++k) row_weights_[k] = static_cast<int16_t>(rows_.weights[k]);
  }

  ring_rows_ = wide_ ? 1 : rows_.most;
  const auto padded = static_cast<size_t>(std::max(row_pixels, margin + blocks_ * kBlockPixels));
  row_stride_ = (padded * 4 + 63) / 64 * 64;
  const auto samples = static_cast<size_t>(blocks_) * kBlockPixels * 4;
  Parts pixel_parts;
  const auto lay_out_pixels = [&] {
    pixel_parts.add(&ring_, row_stride_ * static_cast<size_t>(ring_rows_));
    pixel_parts.add(&between_, samples * kRows);
    pixel_parts.add(&rgbx_, out_width * 4 * kRows);
  };
  lay_out_pixels();
  memory = pixels_.reserve(pixel_parts.used());
  if (memory == nullptr) return false;
  pixel_parts.restart(memory);
  lay_out_pixels();
  if (wide_) {
    sums_ = static_cast<int32_t *>(sum_rows_.reserve(samples * kWideRows * sizeof(int32_t)));
    if (sums_ == nullptr) return false;
  }
  return true;
}

uint8_t *Resampler::next_row() noexcept {
  return ring_ + static_cast<size_t>(source_row_ % ring_rows_) * row_stride_;
}

void Resampler::push_row() noexcept {
  if (wide_) {
    push_wide(next_row() + 4 * margin_);
    return;
  }
  ++source_row_;
  while (output_row_ < geometry_.out_height &&
         rows_.taps[output_row_].first + rows_.taps[output_row_].count <= source_row_) {
    emit_row();
  }
}

void Resampler::emit_row() noexcept {
  const Taps taps = rows_.taps[output_row_];
  int slot = taps.first % ring_rows_;
  for (int k = 0; k < taps.count; ++k) {
    tap_rows_[k] = ring_ + static_cast<size_t>(slot) * row_stride_ + 4 * static_cast<size_t>(margin_);
    if (++slot == ring_rows_) slot = 0;
  }
  level_.vertical(tap_rows_, row_weights_ + rows_.offsets[output_row_], taps.count, blocks_,
                  between_ + group_rows_ * kPairSamples);
  finish_group();
}

void Resampler::push_wide(const uint8_t *row) noexcept {
  const int samples = blocks_ * kBlockPixels * 4;
  const int row_index = source_row_++;
  for (int output = output_row_; output < geometry_.out_height && rows_.taps[output].first <= row_index; ++output) {
    const Taps taps = rows_.taps[output];
    const int32_t weight = rows_.weights[rows_.offsets[output] + row_index - taps.first];
    int32_t *sums = sums_ + static_cast<ptrdiff_t>(output % kWideRows) * samples;
    if (row_index == taps.first) std::memset(sums, 0, static_cast<size_t>(samples) * sizeof(int32_t));
    for (int i = 0; i < samples; ++i) sums[i] += weight * row[i];
    if (row_index + 1 < taps.first + taps.count) continue;
    int16_t *pair = between_ + group_rows_ * kPairSamples;
    for (int i = 0; i < samples; i += kPairSamples, pair += kPairStride) {
      constexpr int kShift = kWideWeightBits - kBetweenBits;
      for (int channel = 0; channel < 4; ++channel) {
        pair[2 * channel] = static_cast<int16_t>((sums[i + channel] + (1 << (kShift - 1))) >> kShift);
        pair[2 * channel + 1] = static_cast<int16_t>((sums[i + 4 + channel] + (1 << (kShift - 1))) >> kShift);
      }
    }
    finish_group();
  }
}

// Counts the row that was just added to the group; passes the group on when it is full or the last.
void Resampler::finish_group() noexcept {
  ++group_rows_;
  ++output_row_;
  if (group_rows_ < kRows && output_row_ < geometry_.out_height) return;
  const auto out_width = static_cast<size_t>(geometry_.out_width);
  level_.horizontal(between_, columns_.taps, columns_.pairs, geometry_.out_width, rgbx_, out_width * 4);
  for (int row = 0; row < group_rows_; ++row) {
    level_.pack(rgbx_ + static_cast<size_t>(row) * out_width * 4, geometry_.out_width, out_);
    out_ += out_width * 3;
  }
  group_rows_ = 0;
}

}  // namespace feeder
