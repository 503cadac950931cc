// Resampling of any planes, windows, boxes and sizes that the input's first bytes choose; the others are the samples.
// - Every instruction set gives the same pixels, and these are near to those of slow arithmetic in double precision: as
//   near as the rounding of weights and products allows at worst.
// - YUV 4:2:0 is what R, G and B of the same size give.
// - Planes in memory give them too; facts of planes that are no image's are refused, or do no harm.

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
  int fact, lie;      // which fact of stored planes is another, and which one
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
  geometry.filter = (fine & 64) != 0 ? FEEDER_TF1_BICUBIC : (settings & 1) != 0 ? FEEDER_BICUBIC : FEEDER_BILINEAR;
  geometry.flip = (settings & 2) != 0;
  geometry.antialias = (settings & 12) != 0;
  chosen.in_turns = (settings & 16) != 0;
  chosen.given_up = settings >> 5;
  chosen.rows_together = 1 << (fine >> 1 & 3);
  chosen.fact = choices.byte();
  chosen.lie = choices.byte();
  if (choices.byte() % 2 == 1) {
    geometry.output = FEEDER_YUV420;
    geometry.out_width += geometry.out_width % 2;
    geometry.out_height += geometry.out_height % 2;
  }
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

size_t bytes_of(feeder_output output, int width, int height) {
  const size_t pixels = static_cast<size_t>(width) * static_cast<size_t>(height);
  return output == FEEDER_YUV420 ? pixels / 2 * 3 : pixels * 3;
}

Bytes resample(const Case &given, const feeder::Level &level) {
  feeder::Resampler resampler(level);
  feeder::Geometry geometry = given.geometry;
  Bytes out(bytes_of(geometry.output, geometry.out_width, geometry.out_height), uint8_t{1});
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

// Pillow counts pixels whose centres are within the support, rounded.
Axis::Output weigh_output(double center, int pixels, double stretch, feeder_filter filter) {
  const double support = (filter == FEEDER_BILINEAR ? 1.0 : 2.0) * stretch;
  const int first = std::max(0, static_cast<int>(center - support + 0.5));
  const int last = std::max(first + 1, std::min(pixels, static_cast<int>(center + support + 0.5)));
  Axis::Output output = {first, {}};
  for (int x = first; x < last; ++x) output.weights.push_back(filter_at(filter, (x + 0.5 - center) / stretch));
  const double total = std::accumulate(output.weights.begin(), output.weights.end(), 0.0);
  if (total == 0) output.weights[0] = 1;
  for (double &weight : output.weights) weight /= total == 0 ? 1 : total;
  return output;
}

// TensorFlow 1 takes four pixels around a position that is a float, rounded to 1/1024, and repeats the edges.
Axis::Output weigh_tf1_output(float position, int pixels) {
  const float whole = std::floor(position);
  const double part = static_cast<double>(std::lrint((position - whole) * 1024)) / 1024;
  Axis::Output output = {0, Doubles(static_cast<size_t>(pixels))};
  for (int tap = -1; tap <= 2; ++tap) {
    const double x = std::fabs(part - tap);
    const double weight = x <= 1 ? 1.25 * x * x * x - 2.25 * x * x + 1 : -0.75 * x * x * x + 3.75 * x * x - 6 * x + 3;
    output.weights[static_cast<size_t>(std::clamp(static_cast<int>(whole) + tap, 0, pixels - 1))] += weight;
  }
  return output;
}

Axis weigh(double box, double length, int begin, int end, int outputs, const feeder::Geometry &geometry) {
  Axis axis;
  axis.pixels = end - begin;
  const double scale = length / outputs, stretch = geometry.antialias ? std::max(1.0, scale) : 1.0;
  const float scale_tf1 = static_cast<float>(length) / static_cast<float>(outputs);
  for (int i = 0; i < outputs; ++i) {
    axis.outputs.push_back(
        geometry.filter == FEEDER_TF1_BICUBIC
            ? weigh_tf1_output(static_cast<float>(box - begin) + scale_tf1 * static_cast<float>(i), axis.pixels)
            : weigh_output(box - begin + (i + 0.5) * scale, axis.pixels, stretch, geometry.filter));
    const Doubles &weights = axis.outputs.back().weights;
    double absolute = 0;
    for (const double weight : weights) absolute += std::fabs(weight);
    axis.most = std::max(axis.most, static_cast<int>(std::count_if(weights.begin(), weights.end(),
                                                                   [](double weight) { return weight != 0; })));
    axis.gain = std::max(axis.gain, absolute);
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

// YUV 4:2:0 of R, G and B, a pixel at a time.
Bytes to_yuv420(const Bytes &rgb, int pixels_across, int pixels_down) {
  const auto width = static_cast<size_t>(pixels_across), height = static_cast<size_t>(pixels_down);
  Bytes luma, chroma[2];
  for (size_t y = 0; y < height; ++y) {
    for (size_t x = 0; x < width; ++x) {
      const uint8_t *const pixel = rgb.data() + 3 * (y * width + x);
      luma.push_back(static_cast<uint8_t>((19595 * pixel[0] + 38470 * pixel[1] + 7471 * pixel[2] + 32768) >> 16));
      if (x % 2 != 0 || y % 2 != 0) continue;
      const auto sum = [&](size_t i) { return pixel[i] + pixel[3 + i] + pixel[3 * width + i] + pixel[3 * width + 3 + i]; };
      const int red = sum(0), green = sum(1), blue = sum(2), half = (128 << 18) + 131071;
      chroma[0].push_back(static_cast<uint8_t>((-11059 * red - 21709 * green + 32768 * blue + half) >> 18));
      chroma[1].push_back(static_cast<uint8_t>((32768 * red - 27439 * green - 5329 * blue + half) >> 18));
    }
  }
  for (const Bytes &plane : chroma) luma.insert(luma.end(), plane.begin(), plane.end());
  return luma;
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
  const size_t width = across.outputs.size();
  const bool ycc = given.layout.ycc;
  // Rounding at the end, and of the products of colour, adds to what chroma may be off.
  const double off = tolerance(across, down) * (ycc ? 1 + 1.772 : 1) + 0.5 + (ycc ? 0.1 : 0.01);
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

// Stored planes, as whoever keeps them hands them over: memory of exactly the size that the facts say.
struct Stored {
  feeder_planes planes = {};
  Bytes samples[3];

  explicit Stored(const Case &given) {
    const PlaneLayout &layout = given.layout;
    feeder_layout &facts = planes.layout;
    facts.components = layout.components;
    facts.ycc = layout.ycc ? 1 : 0;
    facts.smooth = layout.smooth ? 1 : 0;
    facts.width = layout.width;
    facts.height = layout.height;
    for (int i = 0; i < layout.components; ++i) {
      const PlaneLayout::Plane &plane = layout.plane[i];
      const feeder::PlaneRegion &region = plane.region;
      facts.plane[i] = {plane.width, plane.height, plane.across, plane.down,
                        region.left, region.top,   region.right, region.bottom};
    }
  }

  // False where no memory of any size would do.
  bool fill(const Case &given) {
    if (planes.layout.components != 1 && planes.layout.components != 3) return false;
    for (int i = 0; i < planes.layout.components; ++i) {
      const auto &plane = planes.layout.plane[i];
      if (plane.left < 0 || plane.left >= plane.right || plane.top < 0 || plane.top >= plane.bottom) return false;
      const int64_t size = (int64_t{plane.right} - plane.left) * (int64_t{plane.bottom} - plane.top);
      if (size > 1 << 20) return false;
      samples[i].clear();
      for (int y = plane.top; y < plane.bottom; ++y) {
        for (int x = plane.left; x < plane.right; ++x) samples[i].push_back(given.sample(i, x, y));
      }
      samples[i].shrink_to_fit();
      planes.samples[i] = samples[i].data();
    }
    return true;
  }
};

feeder_status decode_stored(const Stored &stored, feeder_request request, Bytes *out) {
  static feeder_decoder *const decoder = [] {
    constexpr feeder_limits kLimits = {1 << 20, 1 << 20, 20, 1 << 22, 0};
    return feeder_decoder_new(&kLimits, feeder_best_level());
  }();
  char reason[FEEDER_REASON_BYTES];
  request.planes = &stored.planes;
  out->assign(bytes_of(request.output, request.out_width, request.out_height), uint8_t{1});
  request.out = out->data();
  return feeder_decode(decoder, &request, reason);
}

void check_stored(const Case &given, const Bytes &expected) {
  const feeder::Geometry &geometry = given.geometry;
  const Window &window = geometry.window;
  feeder_request request = {};
  request.x = window.left;
  request.y = window.top;
  request.width = window.right - window.left;
  request.height = window.bottom - window.top;
  request.reduction = 1;
  request.output = geometry.output;
  request.out_width = geometry.out_width;
  request.out_height = geometry.out_height;
  request.filter = geometry.filter;
  request.antialias = geometry.antialias ? 1 : 0;
  request.flip = geometry.flip ? 1 : 0;
  Stored stored(given);
  Bytes out;
  if (!stored.fill(given)) finding("facts that are no image's");
  if (decode_stored(stored, request, &out) != FEEDER_OK) finding("stored planes are refused");
  const bool whole = request.width == geometry.box_width && request.height == geometry.box_height;
  if (whole && out != expected) finding("stored planes give other pixels");

  constexpr int32_t kLies[] = {0, 1, 2, 3, 4, 5, 8, 255, 65535, 65536, 0x7FFFFFFF, -1, -0x7FFFFFFF - 1};
  int32_t *const facts[] = {&stored.planes.layout.components, &request.x, &request.y, &request.width, &request.height};
  constexpr size_t kFacts = sizeof(feeder_layout) / sizeof(int32_t);
  const size_t which = static_cast<size_t>(given.fact) % (kFacts + 4);
  int32_t *const fact = which < kFacts ? facts[0] + which : facts[which - kFacts + 1];
  const size_t lie = static_cast<size_t>(given.lie) % (std::size(kLies) + 2);
  *fact = lie < std::size(kLies) ? kLies[lie] : *fact + (lie == std::size(kLies) ? 1 : -1);
  // What every caller checks.
  if (request.x < 0 || request.y < 0 || request.width < 1 || request.height < 1 || !stored.fill(given)) return;
  const feeder_status status = decode_stored(stored, request, &out);
  if (status != FEEDER_OK && status != FEEDER_OUTSIDE) finding("neither pixels nor outside");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const Case given = choose(data, size);
  const Bytes plain = resample(given, feeder::kPlainLevel);
#if defined(__x86_64__)
  if (feeder_has_level(FEEDER_SSE4) != 0 && resample(given, feeder::kSse4Level) != plain) finding("sse4 differs");
  if (feeder_has_level(FEEDER_AVX2) != 0 && resample(given, feeder::kAvx2Level) != plain) finding("avx2 differs");
  if (feeder_has_level(FEEDER_AVX512) != 0 && resample(given, feeder::kAvx512Level) != plain) finding("avx512 differs");
#elif defined(__aarch64__)
  if (resample(given, feeder::kNeonLevel) != plain) finding("neon differs");
#endif
  if (given.geometry.output == FEEDER_YUV420) {
    Case as_rgb = given;
    as_rgb.geometry.output = FEEDER_RGB;
    const Bytes rgb = resample(as_rgb, feeder::kPlainLevel);
    compare(as_rgb, rgb);
    if (to_yuv420(rgb, given.geometry.out_width, given.geometry.out_height) != plain) finding("YUV 4:2:0 of other RGB");
  } else {
    compare(given, plain);
  }
  check_stored(given, plain);
  return 0;
}
