#include "resample.h"

#include <algorithm>
#include <cmath>

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

// Fills taps and weights and returns the largest count. Tap positions and weights are Pillow's; the weights of an output are rounded so
// that their running sum is, and they add up to 1 << bits exactly.
template <feeder_filter filter>
int weigh(const AxisGeometry &axis, int bits, double *scratch, Taps *taps, int32_t *weights) {
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
      weights[offset + k] = now - before;
      before = now;
    }
    taps[i] = {first, count, offset};
    offset += count;
    most = std::max(most, count);
  }
  return most;
}

int weigh_axis(const AxisGeometry &axis, int bits, double *scratch, Taps *taps, int32_t *weights) {
  return axis.filter == FEEDER_BILINEAR ? weigh<FEEDER_BILINEAR>(axis, bits, scratch, taps, weights)
                                        : weigh<FEEDER_BICUBIC>(axis, bits, scratch, taps, weights);
}

// Pairs of pixels that an output needs.
int pairs_of(const Taps &taps) { return (taps.first + taps.count - 1) / 2 - taps.first / 2 + 1; }

// Turns taps at pixels into `pairs` taps at pairs of pixels for each output, in mirrored order where it is flipped.
// Outputs are made up to an even number.
void pair_up(const Taps *taps, const int32_t *weights, int outputs, bool flip, int pairs, int32_t *firsts,
             uint32_t *pair_weights) {
  for (int x = 0; x < outputs + (outputs & 1); ++x, pair_weights += pairs) {
    const int from = std::min(x, outputs - 1);
    const Taps tap = taps[flip ? outputs - 1 - from : from];
    const int32_t *weight = weights + tap.offset - (tap.first & 1);  // of the left pixel of the first pair
    const int begin = tap.first & 1, end = begin + tap.count;
    firsts[x] = tap.first / 2;
    for (int k = 0; k < 2 * pairs; k += 2) {
      const uint32_t left = k >= begin && k < end ? static_cast<uint32_t>(weight[k]) & 0xFFFFU : 0U;
      const uint32_t right = k + 1 < end ? static_cast<uint32_t>(weight[k + 1]) & 0xFFFFU : 0U;
      pair_weights[k / 2] = left | right << 16;
    }
  }
}

// Cuts one piece of memory into parts at multiples of 64 bytes.
class Parts {
 public:
  template <typename T>
  void add(T **part, size_t count) {
    if (base_ != nullptr) *part = reinterpret_cast<T *>(base_ + used_);
    used_ += (count * sizeof(T) + 63) / 64 * 64;
  }
  // Puts the parts that were added so far into memory: adding them again, in the same order, sets the pointers.
  bool place(Scratch &memory) {
    base_ = static_cast<unsigned char *>(memory.reserve(used_));
    used_ = 0;
    return base_ != nullptr;
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
  wide_ = geometry.antialias && geometry.box_height > kWideScale * geometry.out_height;

  const AxisGeometry across = {geometry.in_width,  geometry.out_width, geometry.box_x,
                               geometry.box_width, geometry.filter,    geometry.antialias};
  const AxisGeometry down = {geometry.in_height,  geometry.out_height, geometry.box_y,
                             geometry.box_height, geometry.filter,     geometry.antialias};
  const auto column_taps = static_cast<size_t>(most_taps(across));
  const auto row_taps = static_cast<size_t>(most_taps(down));
  const auto out_width = static_cast<size_t>(geometry.out_width);
  const auto even_width = (out_width + 1) / 2 * 2;
  const auto out_height = static_cast<size_t>(geometry.out_height);

  double *scratch = nullptr;
  Taps *columns = nullptr;
  int32_t *column_weights = nullptr;
  Parts tables;
  const auto lay_out_tables = [&] {
    tables.add(&scratch, std::max(column_taps, row_taps));
    tables.add(&columns, out_width);
    tables.add(&column_weights, out_width * column_taps);
    tables.add(&firsts_, even_width);
    tables.add(&pair_weights_, even_width * (column_taps / 2 + 1));
    tables.add(&rows_, out_height);
    tables.add(&sum_weights_, out_height * row_taps);
    tables.add(&row_weights_, out_height * row_taps);
    tables.add(&tap_rows_, row_taps);
  };
  lay_out_tables();
  if (!tables.place(tables_)) return false;
  lay_out_tables();

  weigh_axis(across, kWeightBits, scratch, columns, column_weights);
  pairs_ = 1;
  for (size_t x = 0; x < out_width; ++x) pairs_ = std::max(pairs_, pairs_of(columns[x]));
  pair_up(columns, column_weights, geometry.out_width, geometry.flip, pairs_, firsts_, pair_weights_);
  const int most = weigh_axis(down, wide_ ? kWideWeightBits : kWeightBits, scratch, rows_, sum_weights_);
  const Taps last = rows_[out_height - 1];
  for (int32_t k = 0; k < last.offset + last.count; ++k) row_weights_[k] = static_cast<int16_t>(sum_weights_[k]);

  ring_rows_ = wide_ ? 0 : most;
  const auto samples = static_cast<size_t>(blocks_) * kBlockPixels * 4;
  Parts pixels;
  const auto lay_out_pixels = [&] {
    pixels.add(&source_, static_cast<size_t>(std::max(row_pixels, margin + blocks_ * kBlockPixels)) * 4);
    pixels.add(&ring_, samples * static_cast<size_t>(ring_rows_));
    pixels.add(&between_, samples * kRows + static_cast<size_t>(pairs_ * kPairStride));
    pixels.add(&rgbx_, even_width * 4 * kRows);
    pixels.add(&sums_, wide_ ? samples * kWideRows : 0);
  };
  lay_out_pixels();
  if (!pixels.place(pixels_)) return false;
  lay_out_pixels();
  return true;
}

uint8_t *Resampler::next_row() noexcept { return source_; }

void Resampler::push_row() noexcept {
  if (wide_) {
    push_wide();
    return;
  }
  const size_t samples = static_cast<size_t>(blocks_) * kBlockPixels * 4;
  level_.widen(source_ + 4 * margin_, blocks_, ring_ + static_cast<size_t>(source_row_ % ring_rows_) * samples);
  ++source_row_;
  while (output_row_ < geometry_.out_height &&
         rows_[output_row_].first + rows_[output_row_].count <= source_row_) {
    emit_row();
  }
}

void Resampler::emit_row() noexcept {
  const Taps taps = rows_[output_row_];
  const size_t samples = static_cast<size_t>(blocks_) * kBlockPixels * 4;
  int slot = taps.first % ring_rows_;
  for (int k = 0; k < taps.count; ++k) {
    tap_rows_[k] = ring_ + static_cast<size_t>(slot) * samples;
    if (++slot == ring_rows_) slot = 0;
  }
  level_.vertical(tap_rows_, row_weights_ + taps.offset, taps.count, blocks_, between_ + group_rows_ * kPairSamples);
  finish_row();
}

void Resampler::push_wide() noexcept {
  const uint8_t *row = source_ + 4 * margin_;
  const int samples = blocks_ * kBlockPixels * 4;
  const int row_index = source_row_++;
  for (int output = output_row_; output < geometry_.out_height && rows_[output].first <= row_index; ++output) {
    const Taps taps = rows_[output];
    const int32_t weight = sum_weights_[taps.offset + row_index - taps.first];
    int32_t *sums = sums_ + static_cast<ptrdiff_t>(output % kWideRows) * samples;
    if (row_index == taps.first) std::fill(sums, sums + samples, 0);
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
    finish_row();
  }
}

// Counts the row that was just added to the group; passes the group on when it is full or the last.
void Resampler::finish_row() noexcept {
  ++group_rows_;
  ++output_row_;
  if (group_rows_ < kRows && output_row_ < geometry_.out_height) return;
  const auto even_width = (static_cast<size_t>(geometry_.out_width) + 1) / 2 * 2;
  level_.horizontal(between_, firsts_, pair_weights_, pairs_, static_cast<int>(even_width), rgbx_, even_width * 4);
  for (int row = 0; row < group_rows_; ++row) {
    level_.pack(rgbx_ + static_cast<size_t>(row) * even_width * 4, geometry_.out_width, out_);
    out_ += static_cast<size_t>(geometry_.out_width) * 3;
  }
  group_rows_ = 0;
}

}  // namespace feeder
