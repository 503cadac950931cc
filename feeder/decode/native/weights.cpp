#include "weights.h"

#include <algorithm>
#include <cmath>

namespace feeder {
namespace {

double triangle(double distance) { return distance < 1.0 ? 1.0 - distance : 0.0; }

// Pillow's cubic, A = -0.5.
double cubic(double distance) {
  constexpr double kA = -0.5;
  if (distance < 1.0) return ((kA + 2.0) * distance - (kA + 3.0)) * distance * distance + 1.0;
  if (distance < 2.0) return (((distance - 5.0) * distance + 8.0) * distance - 4.0) * kA;
  return 0.0;
}

// What TensorFlow 1 makes of one output: four pixels around a position without half pixels, which it rounds to 1/1024,
// in float as it does; a pixel outside of the image is the one at its edge.
class Tf1Pixels {
 public:
  explicit Tf1Pixels(const Axis &axis)
      : axis_(axis), scale_(static_cast<float>(axis.length) / static_cast<float>(axis.outputs)) {}

  Span weigh(int output, double *weights) const {
    constexpr int kSteps = 1024;
    const Span all = axis_.window;
    // The box begins within a pixel only where the image is reduced.
    const auto start = static_cast<float>(axis_.box - all.begin);
    const float position = start + scale_ * static_cast<float>(output);
    const float whole = std::floor(position);
    const long step = std::lrint((position - whole) * kSteps);
    const double near = static_cast<double>(step) / kSteps;
    const double tap[4] = {outer(1.0 + near), inner(near), inner(1.0 - near), outer(2.0 - near)};
    const int first = all.begin + static_cast<int>(whole) - 1;
    const Span span = {std::clamp(first, all.begin, all.end - 1), std::clamp(first + 3, all.begin, all.end - 1) + 1};
    std::fill(weights, weights + (span.end - span.begin), 0.0);
    for (int k = 0; k < 4; ++k) weights[std::clamp(first + k, all.begin, all.end - 1) - span.begin] += tap[k];
    return span;
  }

 private:
  static constexpr double kA = -0.75;
  static double inner(double x) { return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1.0; }
  static double outer(double x) { return ((kA * x - 5.0 * kA) * x + 8.0 * kA) * x - 4.0 * kA; }

  const Axis axis_;
  const float scale_;
};

double radius(feeder_filter filter) { return filter == FEEDER_BILINEAR ? 1.0 : 2.0; }

double stretch(const Axis &axis) { return axis.antialias && axis.filter != FEEDER_TF1_BICUBIC ? std::max(1.0, axis.length / axis.outputs) : 1.0; }

int most_pixels(const Axis &axis) {
  const int pixels = axis.window.end - axis.window.begin;
  return std::min(pixels, static_cast<int>(std::ceil(radius(axis.filter) * stretch(axis))) * 2 + 1);
}

// Pixels that an output is made of: their span and, in `weights`, how much of each. Positions and weights are Pillow's,
// which lets pixels outside of the window go.
template <feeder_filter filter>
class Pixels {
 public:
  explicit Pixels(const Axis &axis)
      : axis_(axis),
        scale_(axis.length / axis.outputs),
        support_(radius(filter) * stretch(axis)),
        inverse_(1.0 / stretch(axis)) {}

  Span weigh(int output, double *weights) const {
    const int begin = axis_.window.begin, pixels = axis_.window.end - begin;
    const double center = axis_.box - begin + (output + 0.5) * scale_;
    const int first = std::max(0, static_cast<int>(center - support_ + 0.5));
    const int count = std::max(1, std::min(pixels, static_cast<int>(center + support_ + 0.5)) - first);
    double total = 0.0;
    double position = first - center + 0.5;
    for (int k = 0; k < count; ++k, position += 1.0) {
      const double distance = std::fabs(position) * inverse_;
      weights[k] = filter == FEEDER_BILINEAR ? triangle(distance) : cubic(distance);
      total += weights[k];
    }
    if (total == 0.0) {
      weights[0] = 1.0;
    } else {
      const double norm = 1.0 / total;
      for (int k = 0; k < count; ++k) weights[k] *= norm;
    }
    return {begin + first, begin + first + count};
  }

 private:
  const Axis axis_;
  const double scale_, support_, inverse_;
};

// From weights of pixels to weights of the samples that these are made of.
Span to_samples(const Axis &axis, Span pixels, const double *weights, double *out) {
  const Span span = samples_of(pixels, axis.each, axis.smooth, axis.samples);
  std::fill(out, out + (span.end - span.begin), 0.0);
  for (int pixel = pixels.begin; pixel < pixels.end; ++pixel) {
    const double weight = weights[pixel - pixels.begin];
    const int near = pixel / axis.each;
    if (axis.smooth && axis.each == 2) {
      const int far = std::clamp(near + (pixel % 2 == 0 ? -1 : 1), 0, axis.samples - 1);
      out[near - span.begin] += 0.75 * weight;
      out[far - span.begin] += 0.25 * weight;
    } else {
      out[near - span.begin] += weight;
    }
  }
  return span;
}

// Rounds so that the running sum is a rounded one.
void round(const double *weights, int count, int bits, int32_t *out) {
  // Added before the cast to int, which would otherwise round what is negative upwards.
  const int32_t lift = 1 << bits;
  int32_t before = lift;
  double sum = 0.5 + lift;
  for (int k = 0; k < count; ++k) {
    sum += weights[k] * lift;
    const int32_t now = k + 1 == count ? 2 * lift : static_cast<int32_t>(sum);
    out[k] = now - before;
    before = now;
  }
}

template <typename PixelWeights>
int weigh_all(const Axis &axis, const PixelWeights &pixel_weights, int bits, double *scratch, Taps *taps,
              int32_t *weights) {
  double *const of_pixels = scratch, *const of_samples = scratch + most_pixels(axis);
  // The region begins here.
  const int begin = samples_of(axis.window, axis.each, axis.smooth, axis.samples).begin;
  int32_t offset = 0;
  int most = 0;
  for (int i = 0; i < axis.outputs; ++i) {
    Span span = pixel_weights.weigh(i, of_pixels);
    const double *from = of_pixels;
    if (axis.each != 1) {
      span = to_samples(axis, span, of_pixels, of_samples);
      from = of_samples;
    }
    const int count = span.end - span.begin;
    round(from, count, bits, weights + offset);
    taps[i] = {span.begin - begin, count, offset};
    offset += count;
    most = std::max(most, count);
  }
  return most;
}

}  // namespace

int most_taps(const Axis &axis) {
  const int pixels = most_pixels(axis);
  // As many pixels begin or end within a sample, and lean to one more at both ends.
  return axis.each == 1 ? pixels : std::min(axis.samples, (pixels - 1) / axis.each + 4);
}

size_t weigh_scratch(const Axis &axis) { return static_cast<size_t>(most_pixels(axis) + most_taps(axis)); }

int weigh(const Axis &axis, int bits, double *scratch, Taps *taps, int32_t *weights) {
  if (axis.filter == FEEDER_BILINEAR) {
    return weigh_all(axis, Pixels<FEEDER_BILINEAR>(axis), bits, scratch, taps, weights);
  }
  if (axis.filter == FEEDER_TF1_BICUBIC) return weigh_all(axis, Tf1Pixels(axis), bits, scratch, taps, weights);
  return weigh_all(axis, Pixels<FEEDER_BICUBIC>(axis), bits, scratch, taps, weights);
}

}  // namespace feeder
