// Decodes damaged JPEGs through random windows. Every level, and libjpeg alone, must give the same pixels and the same
// verdict.
//
//   fuzz_decode SEEDS SECONDS [RANDOM_SEED]
//
// SEEDS is a folder of images. The driver mutates them by itself, the same way for the same RANDOM_SEED, so that any
// compiler with sanitizers will do; with -DFEEDER_LIBFUZZER it is a libFuzzer target instead, whose input is one image
// behind 12 bytes that choose window, size and settings.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "jpeg_crop.h"

namespace {

// Small, so that a mutated header costs little time.
constexpr feeder_limits kLimits = {1 << 20, 1 << 20, 20, 8 << 20, 0};
constexpr size_t kChoices = 12;

struct Decoders {
  std::vector<feeder_decoder *> all;

  Decoders() {
    for (int level = FEEDER_PLAIN; level <= feeder_best_level(); ++level) {
      all.push_back(feeder_decoder_new(&kLimits, static_cast<feeder_level>(level)));
    }
    feeder_limits libjpeg = kLimits;
    libjpeg.libjpeg_only = 1;
    all.push_back(feeder_decoder_new(&libjpeg, feeder_best_level()));
  }
  Decoders(const Decoders &) = delete;
  Decoders &operator=(const Decoders &) = delete;
  ~Decoders() {
    for (feeder_decoder *decoder : all) feeder_decoder_free(decoder);
  }
};

void stop(const char *what) {
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

// Returns whether the image decoded.
bool decode(const uint8_t *choices, const uint8_t *data, size_t size) {
  static const Decoders decoders;
  feeder_header header = {};
  const bool readable = feeder_read_header(data, size, &kLimits, &header) == FEEDER_OK;
  const int width = readable ? header.width : 64, height = readable ? header.height : 64;
  feeder_request request = {};
  request.data = data;
  request.size = size;
  // Sometimes outside of the image.
  request.x = choices[0] * (width + 1) / 256;
  request.y = choices[1] * (height + 1) / 256;
  request.width = 1 + choices[2] * std::max(1, width - request.x) / 256 + (choices[8] == 0 ? 1 : 0);
  request.height = 1 + choices[3] * std::max(1, height - request.y) / 256 + (choices[8] == 1 ? 1 : 0);
  request.out_width = 1 + choices[4] % 96;
  request.out_height = 1 + choices[5] % 96;
  request.reduction = 1 << (choices[6] % 8 < 4 ? 0 : choices[6] % 4);
  request.flip = choices[7] & 1;
  request.filter = (choices[7] & 2) != 0 ? FEEDER_BICUBIC : FEEDER_BILINEAR;
  request.antialias = (choices[7] & 12) != 0 ? 1 : 0;

  const size_t bytes = static_cast<size_t>(request.out_width) * static_cast<size_t>(request.out_height) * 3;
  std::vector<uint8_t> first;
  feeder_status verdict = FEEDER_OK;
  for (size_t level = 0; level < decoders.all.size(); ++level) {
    // Exactly as large as promised, on the heap, so that a byte too many is found.
    std::vector<uint8_t> pixels(bytes, static_cast<uint8_t>(level));
    char reason[FEEDER_REASON_BYTES];
    request.out = pixels.data();
    const feeder_status status = feeder_decode(decoders.all[level], &request, reason);
    if (status == FEEDER_DAMAGED && reason[0] == '\0') stop("damaged without a reason");
    if (status == FEEDER_NO_MEMORY) stop("out of memory");
    const bool inside = request.x + request.width <= width && request.y + request.height <= height;
    if (readable && (status == FEEDER_OUTSIDE) == inside) stop("wrong about the window");
    if (readable == (status == FEEDER_OTHER)) stop("wrong about the header");
    if (level == 0) {
      verdict = status;
      first.swap(pixels);
    } else if (status != verdict) {
      stop("decoders differ in their verdict");
    } else if (status == FEEDER_OK && pixels != first) {
      stop("decoders differ in their pixels");
    }
  }
  return verdict == FEEDER_OK;
}

}  // namespace

#if defined(FEEDER_LIBFUZZER)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size >= kChoices) decode(data, data + kChoices, size - kChoices);
  return 0;
}

#else

namespace {

using Bytes = std::vector<uint8_t>;

std::vector<Bytes> read_seeds(const char *folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto &entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.file_size() <= 1 << 18) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> seeds;
  for (const auto &path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  size_t below(size_t bound) { return bound == 0 ? 0 : static_cast<size_t>(random_() % bound); }

  void mutate(Bytes *image, const std::vector<Bytes> &seeds) {
    const size_t times = below(4);
    for (size_t i = 0; i < times && !image->empty(); ++i) once(image, seeds);
  }

 private:
  // Most of the damage goes to the headers, which are a small part of the bytes.
  size_t place(const Bytes &image) { return below(below(3) != 0 ? std::min<size_t>(image.size(), 700) : image.size()); }

  void once(Bytes *image, const std::vector<Bytes> &seeds) {
    const size_t at = place(*image);
    static const uint8_t kTelling[] = {0x00, 0x01, 0x7F, 0x80, 0xFF, 0xC0, 0xC2, 0xC4, 0xD9, 0xDA, 0xDB, 0xDD};
    switch (below(8)) {
      case 0:
        (*image)[at] = static_cast<uint8_t>((*image)[at] ^ 1U << below(8));
        break;
      case 1:
        (*image)[at] = static_cast<uint8_t>(below(256));
        break;
      case 2:
        (*image)[at] = kTelling[below(sizeof kTelling)];
        break;
      case 3:
        image->resize(at);
        break;
      case 4:
        image->erase(image->begin() + static_cast<ptrdiff_t>(at),
                     image->begin() + static_cast<ptrdiff_t>(std::min(image->size(), at + 1 + below(32))));
        break;
      case 5: {
        const Bytes part(image->begin() + static_cast<ptrdiff_t>(at),
                         image->begin() + static_cast<ptrdiff_t>(std::min(image->size(), at + 1 + below(300))));
        image->insert(image->begin() + static_cast<ptrdiff_t>(place(*image)), part.begin(), part.end());
        break;
      }
      case 6: {
        const Bytes &other = seeds[below(seeds.size())];
        const size_t from = place(other);
        image->resize(at);
        image->insert(image->end(), other.begin() + static_cast<ptrdiff_t>(from), other.end());
        break;
      }
      default:
        for (size_t i = at; i < std::min(image->size(), at + 8); ++i) (*image)[i] = static_cast<uint8_t>(below(256));
    }
  }

  std::mt19937_64 random_;
};

}  // namespace

int main(int count, char **arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: %s SEEDS SECONDS [RANDOM_SEED]\n", arguments[0]);
    return 2;
  }
  const std::vector<Bytes> seeds = read_seeds(arguments[1]);
  if (seeds.empty()) {
    std::fprintf(stderr, "no files of at most 256 kB in %s\n", arguments[1]);
    return 2;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(arguments[2]));
  Mutator mutator(count > 3 ? std::strtoull(arguments[3], nullptr, 10) : 1);
  uint64_t runs = 0, decoded = 0;
  do {
    Bytes image = seeds[mutator.below(seeds.size())];
    mutator.mutate(&image, seeds);
    uint8_t choices[kChoices];
    for (uint8_t &choice : choices) choice = static_cast<uint8_t>(mutator.below(256));
    // A copy of exactly the size, so that a read past the end is found.
    image.shrink_to_fit();
    if (decode(choices, image.data(), image.size())) ++decoded;
    ++runs;
  } while (std::chrono::steady_clock::now() < end);
  std::printf("%llu images, %llu of them decoded, no finding\n", static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(decoded));
  return 0;
}

#endif
