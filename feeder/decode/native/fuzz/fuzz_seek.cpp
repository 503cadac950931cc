// Seek points of whole and damaged JPEGs. What is asserted:
// - Points that the kernel learned of an image, all of them or as many as it likes, change nothing about any window of
//   it, and are never refused; what is learned by windows is what is learned at once.
// - Any other bytes in their place do no harm to memory. Where they are not used, or are refused, the result is that
//   without points, and what is stored then is right.
// - A point with other DC predictions is found out by a window in one row of MCUs, when another point follows behind
//   the window and no restart marker resets them.
// Points made to deceive can give other pixels: checksums of file and points stand between them and the kernel.

#include <algorithm>
#include <cstring>
#include <vector>

#include "fuzz_request.h"
#include "scan.h"
#include "seek.h"

namespace {

using fuzz::Bytes;
using fuzz::finding;

struct Result {
  feeder_status status;
  Bytes pixels;
  char reason[FEEDER_REASON_BYTES];
  uint8_t outcome;
  bool operator==(const Result &other) const {
    return status == other.status && std::strcmp(reason, other.reason) == 0 &&
           (status != FEEDER_OK || pixels == other.pixels);
  }
};

Result decode(feeder_decoder *decoder, feeder_request request, Bytes *points) {
  Result result = {};
  result.pixels.resize(fuzz::bytes_of_out(request));
  request.out = result.pixels.data();
  if (points != nullptr) {
    request.seek = points->data();
    request.seek_outcome = &result.outcome;
  }
  result.status = feeder_decode(decoder, &request, result.reason);
  if (result.status == FEEDER_NO_MEMORY) finding("out of memory");
  return result;
}

int known(const Bytes &points) { return points[2] | points[3] << 8; }

// Whether the points say no more than `all`, and nothing else.
bool within(const Bytes &points, const Bytes &all) {
  if (std::all_of(points.begin(), points.end(), [](uint8_t byte) { return byte == 0; })) return true;
  const auto bytes = static_cast<ptrdiff_t>(8 * std::min(known(points), feeder::kMaxPoints));
  return known(points) <= known(all) && std::equal(points.begin() + 4, points.begin() + 8, all.begin() + 4) &&
         std::equal(points.begin() + 8, points.begin() + 8 + std::min(bytes, ptrdiff_t{FEEDER_SEEK_BYTES} - 8),
                    all.begin() + 8);
}

Bytes learn(feeder_decoder *decoder, const feeder_request &window, int width, int height) {
  Bytes points(FEEDER_SEEK_BYTES);
  feeder_request request = window;
  request.stop = FEEDER_LEARN;
  const Result learned = decode(decoder, request, &points);
  if ((learned.outcome & FEEDER_SEEK_REFUSED) != 0) finding("nothing is refused");
  if (((learned.outcome & FEEDER_SEEK_GREW) != 0) != (known(points) > 0)) finding("grew, or not");
  request = window;
  request.x = request.y = 0;
  request.width = width;
  request.height = height;
  if (decode(decoder, request, nullptr).status != learned.status) finding("learning has another verdict");
  return points;
}

// The first `count` points.
Bytes prefix(const Bytes &all, int count) {
  Bytes points = all;
  points[2] = static_cast<uint8_t>(count);
  points[3] = static_cast<uint8_t>(count >> 8);
  const auto end = static_cast<ptrdiff_t>(std::min<size_t>(FEEDER_SEEK_BYTES, 8 + 8 * static_cast<size_t>(count)));
  std::fill(points.begin() + end, points.end(), uint8_t{0});
  if (count == 0) std::fill(points.begin(), points.end(), uint8_t{0});
  return points;
}

void check_genuine(feeder_decoder *decoder, const feeder_request &request, const Result &expected, const Bytes &all,
                   const uint8_t *choices) {
  // Learned as windows come, in two steps.
  Bytes grown(FEEDER_SEEK_BYTES);
  feeder_request other = request;
  other.height = std::max(1, request.height * choices[0] / 256);
  decode(decoder, other, &grown);
  if (!within(grown, all)) finding("windows learn other points");
  for (int again = 0; again < 2; ++again) {
    const Result result = decode(decoder, request, &grown);
    if (!(result == expected)) finding("learned points change the result");
    if ((result.outcome & FEEDER_SEEK_REFUSED) != 0) finding("learned points are refused");
    if (again != 0 && (result.outcome & FEEDER_SEEK_GREW) != 0) finding("the same window teaches twice");
    if (!within(grown, all)) finding("windows learn other points");
  }
  Bytes part = prefix(all, known(all) * choices[1] / 255);
  const Result result = decode(decoder, request, &part);
  if (!(result == expected)) finding("a prefix of the points changes the result");
  if ((result.outcome & FEEDER_SEEK_REFUSED) != 0) finding("a prefix of the points is refused");
  if (!within(part, all)) finding("a prefix grows into other points");
}

void check_hostile(feeder_decoder *decoder, const feeder_request &request, const Result &expected, const Bytes &all,
                   const uint8_t *choices) {
  Bytes points = all;
  for (int edit = 0; edit < 3; ++edit, choices += 3) {
    // Near the beginning as a rule, where points are.
    const size_t bound = choices[0] < 200 ? 8 + 8 * static_cast<size_t>(std::max(1, known(all))) : FEEDER_SEEK_BYTES;
    const size_t at = (size_t{choices[0]} << 8 | choices[1]) % std::min<size_t>(bound, FEEDER_SEEK_BYTES);
    points[at] = static_cast<uint8_t>(points[at] + choices[2]);
  }
  const Bytes before = points;
  const Result result = decode(decoder, request, &points);
  const bool believed = (result.outcome & FEEDER_SEEK_REFUSED) == 0 && known(before) > 0;
  if (believed) return;
  if (!(result == expected)) finding("refused points change the result");
  // An image that has no points leaves them alone.
  if (result.outcome != 0 && !within(points, all)) finding("refused points leave wrong ones behind");
}

void check_predictions(feeder_decoder *decoder, const feeder_request &request, const Bytes &all,
                       const uint8_t *choices) {
  feeder::Scan scan = {};
  if (!feeder::read_scan(request.data, request.size, &scan) || scan.restart_interval != 0) return;
  feeder::SeekGrid grid;
  const int mcu_width = scan.components == 1 ? 8 : 8 * scan.h, mcu_height = scan.components == 1 ? 8 : 8 * scan.v;
  const int columns = (scan.width + mcu_width - 1) / mcu_width;
  grid.set(columns, (scan.height + mcu_height - 1) / mcu_height);
  // Rows in the middle of an MCU, so that smoothing stays in its row.
  feeder_request narrow = request;
  const int row = request.y / mcu_height;
  narrow.y = std::min(row * mcu_height + mcu_height / 2 - 1, scan.height - 1);
  narrow.height = 1;
  const int right = (request.x + request.width + 1) / mcu_width;  // at least the last MCU that the window needs
  const int last = grid.at_or_before(row * columns + std::min(right, columns - 1)) + 1;
  if (last > std::min(known(all), grid.stored())) return;
  const int point = std::max(1, last - choices[0] % 4);
  const Result expected = decode(decoder, narrow, nullptr);
  Bytes points = all;
  const auto at = static_cast<size_t>(8 * point);
  uint64_t value = 0;
  std::memcpy(&value, points.data() + at, 8);
  value ^= uint64_t{1} << (31 + choices[1] % (11 * scan.components));
  std::memcpy(points.data() + at, &value, 8);
  if (!(decode(decoder, narrow, &points) == expected)) finding("another prediction is not found out");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static feeder_decoder *const decoder = feeder_decoder_new(&fuzz::kLimits, feeder_best_level());
  const fuzz::Input input(data, size);
  feeder_header header = {};
  if (feeder_read_header(input.image.data(), input.image.size(), &fuzz::kLimits, &header) != FEEDER_OK) return 0;
  feeder_request request = fuzz::choose_request(input, header.width, header.height);
  request.reduction = 1;
  const Result expected = decode(decoder, request, nullptr);
  const Bytes all = learn(decoder, request, header.width, header.height);
  const uint8_t *choices = input.choices + fuzz::kChoices / 2;
  check_genuine(decoder, request, expected, all, choices);
  check_hostile(decoder, request, expected, all, choices + 2);
  check_predictions(decoder, request, all, choices + 11);
  return 0;
}
