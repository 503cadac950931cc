// Resampling of any planes, windows, boxes and sizes that the input's first bytes choose; the others are the samples.
// Every instruction set gives the same pixels, and these are near to those of slow arithmetic in double precision: as
// near as the rounding of weights and products allows at worst.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "fuzz_input.h"
#include "resample.h"

namespace {

using feeder::PlaneLayout;
using feeder::Window;
using fuzz::Bytes;
using fuzz::finding;

// What an input chooses, byte by byte; zeros when it has no more.
class Choices {
 public:
  Choices(const uint8_t *data, size_t size) : data_(data), end_(data + std::min(size, fuzz::kChoices)) {}
  int byte() { return data_ < end_ ? *data_++ : 0; }
  // Closed; evenly, as far as two bytes allow.
  int draw(int low, int high) {
    const int value = byte() << 8 | byte();
    return low + value % (high - low + 1);
  }

 private:
  const uint8_t *data_, *end_;
};

struct Case {
  PlaneLayout layout;
  feeder::Geometry geometry;
  int rows_together;  // of the component with the fewest
  bool in_turns;
  int given_up;       // rows that a first decoder pushed
  const uint8_t *texture;
  size_t texture_size;

  uint8_t sample(int component, int x, int y) const {
    if (texture_size == 0) return component == 0 ? 255 : 0;
    const auto at = static_cast<size_t>(x + y * (37 + component) + 11 * component);
    return texture[at % texture_size];
  }
};

void choose_layout(Choices &choices, PlaneLayout *layout) {
  layout->components = choices.byte() % 4 == 0 ? 1 : 3;
  layout->ycc = layout->components == 3 && choices.byte() % 8 != 0;
  layout->smooth = choices.byte() % 8 != 0;
  const bool large = choices.byte() % 8 == 0;
  layout->width = large ? choices.draw(1, 1500) : choices.draw(1, 80);
  layout->height = choices.draw(1, std::clamp(20000 / layout->width, 1, large ? 1500 : 80));
  if (large && choices.byte() % 2 == 0) std::swap(layout->width, layout->height);
  const int across = choices.byte() % 4 + 1, down = choices.byte() % 4 + 1;
  for (int i = 0; i < layout->components; ++i) {
    PlaneLayout::Plane &plane = layout->plane[i];
    // As a rule all chroma alike, and luma as fine as pixels.
    const int odd = choices.byte();
    plane.across = i == 0 && odd % 8 != 0 ? 1 : across;
    plane.down = i == 0 && odd % 8 != 0 ? 1 : down;
    if (i != 0 && odd % 16 == 1) plane.across = 1;
    if (i != 0 && odd % 16 == 2) plane.down = 1;
    plane.width = (layout->width + plane.across - 1) / plane.across;
    plane.height = (layout->height + plane.down - 1) / plane.down;
  }
}

// A box that begins and ends within the window's first and last pixel.
void choose_box(int begin, int end, int eighths, double *box, double *length) {
  const double from = begin + (eighths & 7) / 8.0, to = end - (eighths >> 3 & 7) / 8.0;
  *box = from < to ? from : begin;
  *length = (from < to ? to : end) - *box;
}

Case choose(const uint8_t *data, size_t size) {
  Case chosen = {};
  Choices choices(data, size);
  choose_layout(choices, &chosen.layout);
  feeder::Geometry &geometry = chosen.geometry;
  Window &window = geometry.window;
  window.left = choices.draw(0, chosen.layout.width - 1);
  window.top = choices.draw(0, chosen.layout.height - 1);
  window.right = choices.draw(window.left + 1, chosen.layout.width);
  window.bottom = choices.draw(window.top + 1, chosen.layout.height);
  const int fine = choices.byte();
  choose_box(window.left, window.right, fine % 2 == 0 ? 0 : choices.byte(), &geometry.box_x, &geometry.box_width);
  choose_box(window.top, window.bottom, fine % 2 == 0 ? 0 : choices.byte(), &geometry.box_y, &geometry.box_height);
  const int settings = choices.byte();
  geometry.out_width = choices.byte() % 70 + 1;
  geometry.out_height = choices.byte() % 70 + 1;
  geometry.filter = (settings & 1) != 0 ? FEEDER_BICUBIC : FEEDER_BILINEAR;
  geometry.flip = (settings & 2) != 0;
  geometry.antialias = (settings & 12) != 0;
  chosen.in_turns = (settings & 16) != 0;
  chosen.given_up = settings >> 5;
  chosen.rows_together = 1 << (fine >> 1 & 3);
  feeder::set_regions(window, &chosen.layout);
  chosen.texture = data + std::min(size, fuzz::kChoices);
  chosen.texture_size = size - std::min(size, fuzz::kChoices);
  return chosen;
}

// Pushes rows as decoders do, until `most` are pushed.
void push(const Case &given, feeder::Resampler *resampler, int most) {
  int down = 1;
  for (int i = 0; i < given.layout.components; ++i) down = std::max(down, given.layout.plane[i].down);
  const int height = given.rows_together * down;  // of a row of MCUs, in pixels
  const auto push_row = [&](int component, int y) {
    const feeder::PlaneRegion &region = given.layout.plane[component].region;
    if (y < region.top || y >= region.bottom || most-- <= 0) return;
    // A copy of exactly what may be read.
    Bytes row(static_cast<size_t>(region.right - region.left) + feeder::kRowPadding, uint8_t{99});
    for (int x = region.left; x < region.right; ++x) {
      row[static_cast<size_t>(x - region.left)] = given.sample(component, x, y);
    }
    resampler->push(component, row.data());
  };
  for (int top = 0; top < given.layout.height; top += height) {
    for (int turn = 0; turn < (given.in_turns ? height : 1); ++turn) {
      for (int i = 0; i < given.layout.components; ++i) {
        const int rows = height / given.layout.plane[i].down, first = top / given.layout.plane[i].down;
        if (given.in_turns && turn < rows) push_row(i, first + turn);
        for (int y = 0; y < rows && !given.in_turns; ++y) push_row(i, first + y);
      }
    }
  }
}

Bytes resample(const Case &given, const feeder::Level &level) {
  feeder::Resampler resampler(level);
  feeder::Geometry geometry = given.geometry;
  const size_t bytes = static_cast<size_t>(geometry.out_width) * static_cast<size_t>(geometry.out_height) * 3;
  Bytes out(bytes, uint8_t{1});
  geometry.out = out.data();
  resampler.aim(geometry);
  if (given.given_up != 0) {
    if (!resampler.begin(given.layout)) finding("out of memory");
    push(given, &resampler, 4 * given.given_up);
  }
  if (!resampler.begin(given.layout)) finding("out of memory");
  push(given, &resampler, 1 << 30);
  return out;
}

// The slow way: weights of pixels, and of each plane all pixels of the window.

using Doubles = std::vector<double>;

double filter_at(feeder_filter filter, double distance) {
  const double x = std::fabs(distance);
  if (filter == FEEDER_BILINEAR) return std::max(0.0, 1.0 - x);
  if (x < 1.0) return 1.5 * x * x * x - 2.5 * x * x + 1.0;
  return x < 2.0 ? -0.5 * x * x * x + 2.5 * x * x - 4.0 * x + 2.0 : 0.0;
}

struct Axis {
  struct Output {
    int first;
    Doubles weights;  // of pixels from first on
  };
  std::vector<Output> outputs;
  int pixels;
  int most = 1;      // pixels that an output is made of
  double gain = 1;   // largest sum of absolute weights
};

Axis weigh(double box, double length, int begin, int end, int outputs, const feeder::Geometry &geometry) {
  Axis axis;
  axis.pixels = end - begin;
  const double scale = length / outputs, stretch = geometry.antialias ? std::max(1.0, scale) : 1.0;
  const double support = (geometry.filter == FEEDER_BILINEAR ? 1.0 : 2.0) * stretch;
  for (int i = 0; i < outputs; ++i) {
    const double center = box - begin + (i + 0.5) * scale;
    // Pillow counts pixels whose centres are within the support, rounded.
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int last = std::max(first + 1, std::min(axis.pixels, static_cast<int>(center + support + 0.5)));
    Doubles weights;
    for (int x = first; x < last; ++x) weights.push_back(filter_at(geometry.filter, (x + 0.5 - center) / stretch));
    double total = std::accumulate(weights.begin(), weights.end(), 0.0), absolute = 0;
    if (total == 0) weights[0] = total = 1;
    for (double &weight : weights) {
      weight /= total;
      absolute += std::fabs(weight);
    }
    axis.most = std::max(axis.most, last - first);
    axis.gain = std::max(axis.gain, absolute);
    axis.outputs.push_back({first, weights});
  }
  return axis;
}

// A pixel of a plane: libjpeg's triangle filter between two samples of each axis, or the nearest sample.
double pixel(const Case &given, int component, int x, int y) {
  const PlaneLayout::Plane &plane = given.layout.plane[component];
  const bool smooth = feeder::smoothed(given.layout, component);
  const auto neighbour = [&](int at, int each, int samples) {
    return smooth && each == 2 ? std::clamp(at / 2 + (at % 2 == 0 ? -1 : 1), 0, samples - 1) : at / each;
  };
  const int near_x = x / plane.across, far_x = neighbour(x, plane.across, plane.width);
  const int near_y = y / plane.down, far_y = neighbour(y, plane.down, plane.height);
  const feeder::PlaneRegion &region = plane.region;
  if (std::min(near_x, far_x) < region.left || std::max(near_x, far_x) >= region.right ||
      std::min(near_y, far_y) < region.top || std::max(near_y, far_y) >= region.bottom) {
    finding("the region lacks a sample");
  }
  return 0.5625 * given.sample(component, near_x, near_y) + 0.1875 * given.sample(component, far_x, near_y) +
         0.1875 * given.sample(component, near_x, far_y) + 0.0625 * given.sample(component, far_x, far_y);
}

// An image of doubles, row by row.
struct Raster {
  size_t width;
  Doubles values;
  Raster(size_t columns, size_t rows) : width(columns), values(columns * rows) {}
  double &at(size_t x, size_t y) { return values[y * width + x]; }
};

Raster resample_plane(const Case &given, int component, const Axis &across, const Axis &down) {
  const Window &window = given.geometry.window;
  const auto width = static_cast<size_t>(across.pixels), height = static_cast<size_t>(down.pixels);
  Raster pixels(width, height), between(width, down.outputs.size()), out(across.outputs.size(), down.outputs.size());
  for (size_t y = 0; y < height; ++y) {
    for (size_t x = 0; x < width; ++x) {
      pixels.at(x, y) = pixel(given, component, window.left + static_cast<int>(x), window.top + static_cast<int>(y));
    }
  }
  for (size_t y = 0; y < down.outputs.size(); ++y) {
    const Axis::Output &output = down.outputs[y];
    for (size_t k = 0; k < output.weights.size(); ++k) {
      for (size_t x = 0; x < width; ++x) {
        between.at(x, y) += output.weights[k] * pixels.at(x, static_cast<size_t>(output.first) + k);
      }
    }
    for (size_t x = 0; x < across.outputs.size(); ++x) {
      const Axis::Output &column = across.outputs[x];
      for (size_t k = 0; k < column.weights.size(); ++k) {
        out.at(x, y) += column.weights[k] * between.at(static_cast<size_t>(column.first) + k, y);
      }
    }
  }
  return out;
}

// How far a plane may be off, in levels: of each sample that an output is made of, the weight may be off by 1 / 16384,
// and the product is rounded to 1 / 128, and in the second pass to 1 / 64, of a level.
double tolerance(const Axis &across, const Axis &down) {
  constexpr double kWeight = 1.0 / 16384, kSamples = 128;
  const double rows = (down.most + 3) * (kWeight * kSamples + 0.5 / 128);
  const double columns = (across.most + 3) * (kWeight * kSamples * down.gain + 0.5 / 64);
  return rows * across.gain + columns;
}

void compare(const Case &given, const Bytes &found) {
  const feeder::Geometry &geometry = given.geometry;
  const Window &window = geometry.window;
  const Axis across = weigh(geometry.box_x, geometry.box_width, window.left, window.right, geometry.out_width, geometry);
  const Axis down = weigh(geometry.box_y, geometry.box_height, window.top, window.bottom, geometry.out_height, geometry);
  std::vector<Raster> planes;
  for (int i = 0; i < 3; ++i) {
    planes.push_back(i < given.layout.components ? resample_plane(given, i, across, down) : planes[0]);
  }
  // Rounding at the end, and of the products of colour, adds to what chroma may be off.
  const bool ycc = given.layout.ycc;
  const double off = tolerance(across, down) * (ycc ? 1 + 1.772 : 1) + 0.5 + (ycc ? 0.1 : 0.01);
  const size_t width = across.outputs.size();
  for (size_t y = 0; y < down.outputs.size(); ++y) {
    for (size_t x = 0; x < width; ++x) {
      double rgb[3] = {planes[0].at(x, y), planes[1].at(x, y), planes[2].at(x, y)};
      if (ycc) {
        const double luma = rgb[0], cb = rgb[1] - 128, cr = rgb[2] - 128;
        rgb[0] = luma + 1.402 * cr;
        rgb[1] = luma - 0.344136 * cb - 0.714136 * cr;
        rgb[2] = luma + 1.772 * cb;
      }
      const uint8_t *const values = found.data() + 3 * (y * width + (geometry.flip ? width - 1 - x : x));
      for (int channel = 0; channel < 3; ++channel) {
        if (std::fabs(std::clamp(rgb[channel], 0.0, 255.0) - values[channel]) > off) {
          finding("far from slow arithmetic");
        }
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const Case given = choose(data, size);
  const Bytes plain = resample(given, feeder::kPlainLevel);
#if defined(__x86_64__)
  if (feeder_best_level() >= FEEDER_SSE4 && resample(given, feeder::kSse4Level) != plain) finding("sse4 differs");
  if (feeder_best_level() >= FEEDER_AVX2 && resample(given, feeder::kAvx2Level) != plain) finding("avx2 differs");
#endif
  compare(given, plain);
  return 0;
}
