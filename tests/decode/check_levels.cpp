// Prints one line for each level of this machine: its name, and hashes of what it makes of planes and of coefficients, the
// same ones on every machine. All lines of all machines must end alike.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "planes.h"
#include "resample.h"

namespace {

using Random = std::mt19937;  // the same numbers everywhere

int draw(Random &random, int low, int high) {  // closed
  return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}

struct Hash {
  uint64_t value = 14695981039346656037U;
  void add(const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) value = (value ^ bytes[i]) * 1099511628211U;
  }
};

feeder::PlaneLayout draw_layout(Random &random, int side) {
  constexpr int kSamplings[][2] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {3, 2}, {4, 4}};
  feeder::PlaneLayout layout = {};
  layout.components = draw(random, 0, 3) == 0 ? 1 : 3;
  layout.ycc = draw(random, 0, 2) != 0;
  layout.smooth = draw(random, 0, 4) != 0;
  layout.width = draw(random, 1, side);
  layout.height = draw(random, 1, side);
  const auto &sampling = kSamplings[draw(random, 0, 6)];
  for (int i = 0; i < layout.components; ++i) {
    const int across = i == 0 ? 1 : sampling[0], down = i == 0 ? 1 : sampling[1];
    layout.plane[i] = {(layout.width + across - 1) / across, (layout.height + down - 1) / down, across, down, {}};
  }
  return layout;
}

feeder::Window draw_window(Random &random, const feeder::PlaneLayout &layout) {
  feeder::Window window = {};
  window.left = draw(random, 0, layout.width - 1);
  window.top = draw(random, 0, layout.height - 1);
  window.right = draw(random, window.left + 1, layout.width);
  window.bottom = draw(random, window.top + 1, layout.height);
  return window;
}

// Rows of noise of two levels or of a slope with a little noise, in the order that the sink wants.
void push_rows(Random &random, const feeder::PlaneLayout &layout, feeder::PlaneSink *sink) {
  const bool slope = draw(random, 0, 1) == 0;
  int next[feeder::kMaxPlanes], coarsest = 1;
  for (int i = 0; i < layout.components; ++i) {
    next[i] = layout.plane[i].region.top;
    coarsest = std::max(coarsest, layout.plane[i].down);
  }
  std::vector<uint8_t> row(static_cast<size_t>(layout.width + feeder::kRowPadding));
  for (int mcus = 1; (mcus - 1) * 8 * coarsest < layout.height; ++mcus) {
    for (int i = 0; i < layout.components; ++i) {
      const feeder::PlaneLayout::Plane &plane = layout.plane[i];
      const int end = std::min(plane.region.bottom, mcus * 8 * coarsest / plane.down);
      for (; next[i] < end; ++next[i]) {
        for (size_t x = 0; x < row.size(); ++x) {
          const int value = slope ? 3 * next[i] + static_cast<int>(x) + draw(random, 0, 8) : 255 * draw(random, 0, 1);
          row[x] = static_cast<uint8_t>(value);
        }
        sink->push(i, row.data());
      }
    }
  }
}

bool hash_pixels(const feeder::Level &level, Hash *hash) {
  Random random(1);
  feeder::Resampler resampler(level);
  for (int round = 0; round < 400; ++round) {
    feeder::PlaneLayout layout = draw_layout(random, round % 8 == 0 ? 900 : 120);
    feeder::Geometry geometry = {};
    geometry.window = draw_window(random, layout);
    geometry.box_x = geometry.window.left;
    geometry.box_y = geometry.window.top;
    geometry.box_width = geometry.window.right - geometry.window.left;
    geometry.box_height = geometry.window.bottom - geometry.window.top;
    geometry.out_width = draw(random, 1, 90);
    geometry.out_height = draw(random, 1, 90);
    geometry.filter = static_cast<feeder_filter>(draw(random, 0, 2));
    geometry.antialias = draw(random, 0, 1) == 0;
    geometry.flip = draw(random, 0, 1) == 0;
    if (round % 3 == 0) {
      geometry.output = FEEDER_YUV420;
      geometry.out_width += geometry.out_width % 2;
      geometry.out_height += geometry.out_height % 2;
    }
    // Of its very size, for AddressSanitizer's sake.
    const int pixels = geometry.out_width * geometry.out_height;
    std::vector<uint8_t> out(static_cast<size_t>(geometry.output == FEEDER_YUV420 ? pixels / 2 * 3 : pixels * 3));
    geometry.out = out.data();
    feeder::set_regions(geometry.window, &layout);
    resampler.aim(geometry);
    if (!resampler.begin(layout)) return false;
    push_rows(random, layout, &resampler);
    hash->add(out.data(), out.size());
  }
  return true;
}

// Coefficients within and far beyond what a file can hold.
void hash_samples(const feeder::Planes &planes, Hash *hash) {
  Random random(2);
  for (int round = 0; round < 20000; ++round) {
    int16_t block[64];
    uint16_t quant[64];
    const int rows = draw(random, 1, 8);
    for (int k = 0; k < 64; ++k) {
      const bool extreme = draw(random, 0, 3) == 0;
      const int value = extreme ? (draw(random, 0, 1) == 0 ? -0x8000 : 0x7FFF) : draw(random, -300, 300);
      block[k] = static_cast<int16_t>(k / 8 < rows ? value : 0);
      quant[k] = static_cast<uint16_t>(round % 2 == 0 ? 1 : draw(random, 1, 0xFFFF));
    }
    uint8_t samples[64];
    planes.idct_islow(block, quant, samples, 8);
    hash->add(samples, sizeof samples);
    planes.idct_dc(block[0], quant[0], samples, 8);
    hash->add(samples, sizeof samples);
  }
}

bool print(const char *name, const feeder::Level &level, const feeder::Planes &planes) {
  Hash pixels, samples;
  if (!hash_pixels(level, &pixels)) return false;
  hash_samples(planes, &samples);
  std::printf("%s %016llx %016llx\n", name, static_cast<unsigned long long>(pixels.value),
              static_cast<unsigned long long>(samples.value));
  return true;
}

}  // namespace

int main() {
  bool good = print("plain", feeder::kPlainLevel, feeder::kPlainPlanes);
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("sse4.1")) good = print("sse4", feeder::kSse4Level, feeder::kSse4Planes) && good;
  if (__builtin_cpu_supports("avx2")) good = print("avx2", feeder::kAvx2Level, feeder::kAvx2Planes) && good;
  if (feeder_has_level(FEEDER_AVX512) != 0) {
    good = print("avx512", feeder::kAvx512Level, feeder::kAvx2Planes) && good;
  }
#elif defined(__aarch64__)
  good = print("neon", feeder::kNeonLevel, feeder::kNeonPlanes) && good;
#endif
  return good ? 0 : 1;
}
