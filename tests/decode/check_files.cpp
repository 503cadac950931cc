// Takes paths of files, one a line, through the whole kernel: its header, windows at every scale with every instruction
// set and by libjpeg alone, from planes, from kept planes, and with seek points; all must be the same. Prints a line for
// each file: how decoding all of it ended, and how many windows gave pixels. A difference ends the program. Large images
// have fewer windows and scales, and the largest no instruction sets between the plain and the best one.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "jpeg_crop.h"
#include "kept_planes.h"

namespace {

using Bytes = std::vector<uint8_t>;

constexpr feeder_limits kLimits = {1 << 27, 1 << 27, 100, uint64_t{1} << 31, 0};
constexpr int kOutWidth = 31, kOutHeight = 24;
constexpr const char *kStatus[] = {"ok", "other", "damaged", "outside", "no memory"};

struct Free {
  void operator()(feeder_decoder *decoder) const { feeder_decoder_free(decoder); }
  void operator()(uint8_t *samples) const { std::free(samples); }
};
using Decoder = std::unique_ptr<feeder_decoder, Free>;

struct Window {
  int x, y, width, height;
};

struct Result {
  feeder_status status = FEEDER_OK;
  std::string reason;
  Bytes pixels;
  bool operator==(const Result &other) const {
    return status == other.status && reason == other.reason && pixels == other.pixels;
  }
};

[[noreturn]] void differ(const std::string &path, const Window &window, int reduction, const char *what) {
  std::fprintf(stderr, "%s: window %d %d %d %d at 1/%d: %s\n", path.c_str(), window.x, window.y, window.width,
               window.height, reduction, what);
  std::exit(1);
}

std::vector<Decoder> make_decoders() {
  std::vector<Decoder> decoders;
  for (const feeder_level level : {FEEDER_PLAIN, FEEDER_SSE4, FEEDER_AVX2, FEEDER_AVX512, FEEDER_NEON}) {
    if (feeder_has_level(level) != 0) decoders.emplace_back(feeder_decoder_new(&kLimits, level));
  }
  feeder_limits libjpeg = kLimits;
  libjpeg.libjpeg_only = 1;
  decoders.emplace_back(feeder_decoder_new(&libjpeg, feeder_best_level()));
  return decoders;
}

bool is_large(int width, int height) { return static_cast<int64_t>(width) * height > 1 << 20; }
bool is_huge(int width, int height) { return static_cast<int64_t>(width) * height > 1 << 22; }

// The whole, single rows from top to bottom, and any.
std::vector<Window> windows_of(int width, int height) {
  std::vector<Window> windows = {{0, 0, width, height}};
  const int count = is_large(width, height) ? 1 : 6;
  std::mt19937 random(static_cast<unsigned>(width + height));  // the same numbers everywhere
  const auto draw = [&random](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (int i = 0; i < count; ++i) {
    windows.push_back({0, (height - 1) * i / count, width, 1});
    const int w = draw(1, width), h = draw(1, height);
    windows.push_back({draw(0, width - w), draw(0, height - h), w, h});
  }
  return windows;
}

Result decode(feeder_decoder *decoder, feeder_request request) {
  Result result;
  // Exactly as large as promised, on the heap, so that a byte too many is found.
  result.pixels.assign(static_cast<size_t>(kOutWidth * kOutHeight * 3), uint8_t{1});
  request.out = result.pixels.data();
  char reason[FEEDER_REASON_BYTES] = "";
  result.status = feeder_decode(decoder, &request, reason);
  result.reason = reason;
  if (result.status != FEEDER_OK) result.pixels.clear();
  return result;
}

feeder_request request_of(const Bytes &data, const Window &window, int reduction) {
  feeder_request request = {};
  request.data = data.data();
  request.size = data.size();
  request.x = window.x;
  request.y = window.y;
  request.width = window.width;
  request.height = window.height;
  request.reduction = reduction;
  request.flip = (window.x + window.y) % 2;
  request.filter = reduction == 2 ? FEEDER_BICUBIC : FEEDER_BILINEAR;
  request.antialias = 1;
  request.out_width = kOutWidth;
  request.out_height = kOutHeight;
  return request;
}

// Checks all windows at one scale; returns how many gave pixels.
int check_scale(const std::string &path, const Bytes &data, const std::vector<feeder_decoder *> &decoders,
                const std::vector<Window> &windows, int reduction) {
  feeder_decoder *const first = decoders.front();
  feeder_planes planes = {}, again = {};
  feeder_request whole = request_of(data, windows.front(), reduction);
  whole.keep = &planes;
  char reason[FEEDER_REASON_BYTES] = "";
  const feeder_status kept = feeder_decode(first, &whole, reason);
  const std::unique_ptr<uint8_t, Free> samples(planes.samples[0]);
  Bytes stored;
  if (kept == FEEDER_OK) {
    stored.resize(feeder::kept_bytes(planes));
    feeder::write_kept(planes, stored.data());
    if (!feeder::read_kept(stored.data(), stored.size(), &again)) differ(path, windows[0], reduction, "not read again");
  }
  int decoded = 0;
  for (const Window &window : windows) {
    const feeder_request request = request_of(data, window, reduction);
    const Result expected = decode(first, request);
    if (expected.status == FEEDER_NO_MEMORY) differ(path, window, reduction, "out of memory");
    if (expected.status == FEEDER_DAMAGED && expected.reason.empty()) differ(path, window, reduction, "no reason");
    for (feeder_decoder *decoder : decoders) {
      if (!(decode(decoder, request) == expected)) differ(path, window, reduction, "decoders differ");
    }
    if (&window == &windows.front() && expected.status != kept) differ(path, window, reduction, "planes differ");
    if (kept == FEEDER_OK) {
      feeder_request indirect = request;
      indirect.data = nullptr;
      indirect.planes = &again;
      for (feeder_decoder *decoder : decoders) {
        if (!(decode(decoder, indirect) == expected)) differ(path, window, reduction, "kept planes differ");
      }
    }
    decoded += expected.status == FEEDER_OK ? 1 : 0;
  }
  return decoded;
}

// Learns at once, and by windows; either way changes nothing.
void check_seek(const std::string &path, const Bytes &data, feeder_decoder *decoder,
                const std::vector<Window> &windows) {
  for (const bool at_once : {true, false}) {
    Bytes points(FEEDER_SEEK_BYTES);
    uint8_t outcome = 0;
    if (at_once) {
      feeder_request request = request_of(data, windows.front(), 1);
      request.stop = FEEDER_LEARN;
      request.seek = points.data();
      request.seek_outcome = &outcome;
      decode(decoder, request);
    }
    for (auto window = windows.rbegin(); window != windows.rend(); ++window) {
      feeder_request request = request_of(data, *window, 1);
      const Result expected = decode(decoder, request);
      request.seek = points.data();
      request.seek_outcome = &outcome;
      if (!(decode(decoder, request) == expected)) differ(path, *window, 1, "seek points change the result");
      if ((outcome & FEEDER_SEEK_REFUSED) != 0) differ(path, *window, 1, "own seek points are refused");
    }
  }
}

void check_file(const std::string &path, const std::vector<Decoder> &all) {
  std::ifstream file(path, std::ios::binary);
  if (!file) differ(path, {}, 1, "cannot be read");
  Bytes data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  data.shrink_to_fit();
  feeder_header header = {};
  feeder_status status = feeder_read_header(data.data(), data.size(), &kLimits, &header);
  std::vector<feeder_decoder *> decoders;  // the last is libjpeg's, the one before it the best
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == 0 || i + 2 >= all.size() || !is_huge(header.width, header.height)) decoders.push_back(all[i].get());
  }
  int decoded = 0;
  const std::vector<Window> windows =
      status == FEEDER_OK ? windows_of(header.width, header.height) : std::vector<Window>{{0, 0, 1, 1}};
  for (const int reduction : {1, 2, 4, 8}) {
    if (reduction > 1 && reduction < 8 && is_large(header.width, header.height)) continue;
    decoded += check_scale(path, data, decoders, windows, reduction);
  }
  check_seek(path, data, decoders.front(), windows);
  status = decode(decoders.front(), request_of(data, windows.front(), 1)).status;
  std::printf("%s\t%d\t%s\n", kStatus[status], decoded, path.c_str());
}

}  // namespace

int main() {
  const std::vector<Decoder> decoders = make_decoders();
  for (std::string path; std::getline(std::cin, path);) check_file(path, decoders);
  return 0;
}
