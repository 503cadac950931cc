// What a cache says are kept planes: any bytes at all. They are refused, or planes that lie within them and are written
// again as the same bytes; of these any window is outside or has pixels, the same ones with every instruction set.

#include <algorithm>
#include <cstring>
#include <vector>

#include "fuzz_request.h"
#include "kept_planes.h"
#include "sink.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

namespace {

using fuzz::Bytes;
using fuzz::finding;
using fuzz::Random;

struct Decoders {
  std::vector<feeder_decoder *> all;

  Decoders() {
    for (const feeder_level level : {FEEDER_PLAIN, FEEDER_SSE4, FEEDER_AVX2, FEEDER_AVX512, FEEDER_NEON}) {
      if (feeder_has_level(level) != 0) all.push_back(feeder_decoder_new(&fuzz::kLimits, level));
    }
  }
  Decoders(const Decoders &) = delete;
  Decoders &operator=(const Decoders &) = delete;
  ~Decoders() {
    for (feeder_decoder *decoder : all) feeder_decoder_free(decoder);
  }
};

feeder_layout draw_facts(Random &random) {
  feeder_layout facts = {};
  facts.components = fuzz::chance(random, 4) ? 1 : 3;
  facts.ycc = facts.components == 3 && !fuzz::chance(random, 8) ? 1 : 0;
  facts.smooth = fuzz::draw(random, 0, 1);
  facts.width = fuzz::draw(random, 1, 60);
  facts.height = fuzz::draw(random, 1, 40);
  const bool part = fuzz::chance(random, 4);
  for (int i = 0; i < facts.components; ++i) {
    auto &plane = facts.plane[i];
    plane.across = i == 0 ? 1 : fuzz::draw(random, 1, 4);
    plane.down = i == 0 ? 1 : fuzz::draw(random, 1, 4);
    plane.width = (facts.width + plane.across - 1) / plane.across;
    plane.height = (facts.height + plane.down - 1) / plane.down;
    plane.left = part ? fuzz::draw(random, 0, plane.width - 1) : 0;
    plane.top = part ? fuzz::draw(random, 0, plane.height - 1) : 0;
    plane.right = part ? fuzz::draw(random, plane.left + 1, plane.width) : plane.width;
    plane.bottom = part ? fuzz::draw(random, plane.top + 1, plane.height) : plane.height;
  }
  return facts;
}

Bytes make_kept(Random &random) {
  feeder_planes planes = {};
  planes.layout = draw_facts(random);
  Bytes bytes(feeder::kept_bytes(planes));
  for (uint8_t &byte : bytes) byte = static_cast<uint8_t>(random() >> 8);
  std::memcpy(bytes.data(), &planes.layout, sizeof planes.layout);
  return bytes;
}

// One of the facts becomes another, near to it or at the end of what its type holds.
void change_fact(Bytes *bytes, Random &random) {
  constexpr int32_t kValues[] = {0, 1, 2, 3, 4, 5, 65535, 65536, 0x7FFFFFFF, -1, -0x7FFFFFFF - 1};
  const size_t at = fuzz::below(random, sizeof(feeder_layout) / sizeof(int32_t)) * sizeof(int32_t);
  uint32_t value;
  std::memcpy(&value, bytes->data() + at, sizeof value);
  value = fuzz::chance(random, 2) ? value + static_cast<uint32_t>(fuzz::draw(random, -2, 2))
                                  : static_cast<uint32_t>(kValues[fuzz::below(random, std::size(kValues))]);
  std::memcpy(bytes->data() + at, &value, sizeof value);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
  Random random(seed + 1);
  if (fuzz::chance(random, 3)) return LLVMFuzzerMutate(data, size, max_size);
  fuzz::Input input(data, size);
  Bytes &bytes = input.image;
  if (bytes.size() < sizeof(feeder_layout) || fuzz::chance(random, 4)) bytes = make_kept(random);
  if (!fuzz::chance(random, 3)) change_fact(&bytes, random);
  for (uint8_t &choice : input.choices) {
    if (fuzz::chance(random, 4)) choice = static_cast<uint8_t>(random() >> 8);
  }
  if (bytes.size() + fuzz::kChoices > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(bytes.begin(), bytes.end(), data);
  std::copy(std::begin(input.choices), std::end(input.choices), data + bytes.size());
  return bytes.size() + fuzz::kChoices;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const Decoders decoders;
  const fuzz::Input input(data, size);
  const Bytes &bytes = input.image;
  feeder_planes planes = {};
  if (!feeder::read_kept(bytes.data(), bytes.size(), &planes)) return 0;
  if (feeder::kept_bytes(planes) != bytes.size()) finding("planes of another size");
  Bytes again(bytes.size());
  feeder::write_kept(planes, again.data());
  if (again != bytes) finding("planes are other bytes");

  // What is no size of an image is found out later, but the window must be one.
  feeder_request request = fuzz::choose_request(input, std::clamp(planes.layout.width, 1, 4096),
                                                std::clamp(planes.layout.height, 1, 4096));
  request.planes = &planes;
  Bytes first;
  feeder_status verdict = FEEDER_OK;
  for (feeder_decoder *decoder : decoders.all) {
    Bytes out(fuzz::bytes_of_out(request), uint8_t{1});
    request.out = out.data();
    char reason[FEEDER_REASON_BYTES];
    const feeder_status status = feeder_decode(decoder, &request, reason);
    if (status != FEEDER_OK && status != FEEDER_OUTSIDE) finding("neither pixels nor outside");
    if (decoder != decoders.all[0] && (status != verdict || out != first)) finding("levels differ");
    verdict = status;
    first = out;
  }
  return 0;
}
