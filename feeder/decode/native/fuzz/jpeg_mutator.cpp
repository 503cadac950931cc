// The mutator of the targets for JPEGs: it knows segments and their fields, so that most of what it makes passes the
// first checks of a header and reaches the code behind them. Linked into a target, it takes the place of libFuzzer's own.

#include <algorithm>
#include <cstring>

#include "fuzz_input.h"
#include "jpeg_maker.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

namespace {

using fuzz::below;
using fuzz::Bytes;
using fuzz::chance;
using fuzz::draw;
using fuzz::kChoices;
using fuzz::Random;

constexpr uint8_t kStart = 0xD8, kRestart = 0xD0, kTables = 0xC4, kFrame = 0xC0, kScan = 0xDA, kQuant = 0xDB,
                  kInterval = 0xDD;

// From its FF to before the next one; entropy-coded data is a segment with marker 0.
struct Segment {
  uint8_t marker;
  size_t begin, end;
  size_t payload() const { return std::min(end, begin + (marker == 0 || marker == kStart ? 0 : 4)); }
};

std::vector<Segment> segments_of(const Bytes &jpeg) {
  std::vector<Segment> found;
  size_t at = 0;
  while (jpeg.size() - at >= 4 && jpeg[at] == 0xFF) {
    const uint8_t marker = jpeg[at + 1];
    size_t end = at + 2;
    if (marker != kStart) {
      end = std::min(jpeg.size(), end + (static_cast<size_t>(jpeg[at + 2]) << 8 | jpeg[at + 3]));
    }
    found.push_back({marker, at, end});
    at = end;
    if (marker != kScan) continue;
    while (end + 1 < jpeg.size() &&
           (jpeg[end] != 0xFF || jpeg[end + 1] == 0 || (jpeg[end + 1] & 0xF8) == kRestart)) {
      ++end;
    }
    found.push_back({0, at, end});
    at = end;
  }
  return found;
}

class Mutator {
 public:
  Mutator(Bytes *jpeg, Random *random) : jpeg_(*jpeg), random_(*random) {}

  void once() {
    if (jpeg_.size() < 4 || chance(random_, 20)) {
      Bytes fresh = fuzz::make_jpeg(random_);
      if (!fresh.empty()) jpeg_.swap(fresh);
      return;
    }
    segments_ = segments_of(jpeg_);
    if (segments_.empty()) {
      anywhere();
      return;
    }
    switch (below(random_, 16)) {
      case 0:
        anywhere();
        break;
      case 1:
        any_payload();
        break;
      case 2:
      case 3:
        frame();
        break;
      case 4:
        quant();
        break;
      case 5:
      case 6:
        tables();
        break;
      case 7:
        interval();
        break;
      case 8:
        order();
        break;
      case 9:
        insert_marker();
        break;
      case 10: {
        Bytes again = fuzz::recode_jpeg(jpeg_, random_);
        if (!again.empty()) jpeg_.swap(again);
        break;
      }
      default:
        entropy();
    }
  }

 private:
  // The part from begin to end becomes what libFuzzer makes of it.
  size_t by_libfuzzer(size_t begin, size_t end) {
    Bytes part(jpeg_.begin() + at(begin), jpeg_.begin() + at(end));
    const size_t most = part.size() + 64;
    const size_t size = part.size();
    part.resize(most);
    part.resize(LLVMFuzzerMutate(part.data(), size, most));
    replace(begin, end, part);
    return part.size();
  }

  void anywhere() { by_libfuzzer(0, jpeg_.size()); }

  void any_payload() {
    const Segment &segment = segments_[below(random_, segments_.size())];
    const size_t size = by_libfuzzer(segment.payload(), segment.end);
    if (segment.marker != 0 && segment.marker != kStart && chance(random_, 4) == false) set_length(segment, size);
  }

  void frame() {
    const Segment *segment = find([](uint8_t marker) { return marker >= kFrame && marker <= 0xC2; });
    if (segment == nullptr || segment->end - segment->payload() < 9) return;
    uint8_t *const fields = jpeg_.data() + segment->payload();
    const size_t components = std::min<size_t>(fields[5], (segment->end - segment->payload() - 6) / 3);
    static constexpr uint8_t kFactors[] = {0x11, 0x12, 0x21, 0x22, 0x41, 0x14, 0x44, 0x31, 0x42, 0x24};
    switch (below(random_, 8)) {
      case 0:
        jpeg_[segment->begin + 1] = static_cast<uint8_t>(kFrame + below(random_, 3));
        break;
      case 1:
      case 2:
      case 3: {
        // A little more or less than the data holds is more telling than any number.
        uint8_t *const side = fields + (chance(random_, 2) ? 1 : 3);
        const int now = side[0] << 8 | side[1];
        const int next = chance(random_, 4) ? draw(random_, 0, 600) : std::clamp(now + draw(random_, -20, 20), 0, 65535);
        side[0] = static_cast<uint8_t>(next >> 8);
        side[1] = static_cast<uint8_t>(next);
        break;
      }
      default:
        if (components == 0) return;
        uint8_t *const component = fields + 6 + 3 * (chance(random_, 2) ? 0 : below(random_, components));
        if (chance(random_, 5)) {
          component[chance(random_, 2) ? 0 : 2] = static_cast<uint8_t>(below(random_, 5));
        } else {
          component[1] = kFactors[below(random_, sizeof kFactors)];
        }
    }
  }

  void quant() {
    const Segment *segment = find([](uint8_t marker) { return marker == kQuant; });
    if (segment == nullptr || segment->payload() == segment->end) return;
    static constexpr uint8_t kValues[] = {0, 1, 2, 16, 127, 128, 255};
    const size_t place = segment->payload() + below(random_, segment->end - segment->payload());
    jpeg_[place] = chance(random_, 2) ? kValues[below(random_, sizeof kValues)] : byte();
  }

  // Lengths of codes change in pairs that leave the sum of the code space nearly as it is; symbols change freely.
  void tables() {
    const Segment *segment = find([](uint8_t marker) { return marker == kTables; });
    if (segment == nullptr || segment->end - segment->payload() < 18) return;
    uint8_t *const table = jpeg_.data() + segment->payload();
    uint8_t *const symbols = table + 17;
    const size_t count = segment->end - segment->payload() - 17;
    switch (below(random_, 6)) {
      case 0:
        table[0] = static_cast<uint8_t>((table[0] & (chance(random_, 3) ? 0 : 0x10)) | below(random_, 4));
        break;
      case 1:
        std::swap(table[1 + below(random_, 16)], table[1 + below(random_, 16)]);
        break;
      case 2: {
        uint8_t &from = table[1 + below(random_, 16)];
        if (from == 0) return;
        --from;
        ++table[1 + below(random_, 16)];
        break;
      }
      case 3:
        std::swap(symbols[below(random_, count)], symbols[below(random_, count)]);
        break;
      case 4:
        // Runs and sizes at the limits.
        symbols[below(random_, count)] = static_cast<uint8_t>(chance(random_, 2) ? 0xF0 | byte() : 0x0F & byte());
        break;
      default:
        symbols[below(random_, count)] = byte();
    }
  }

  void interval() {
    const int most = chance(random_, 3) ? 65535 : 12;
    const int value = draw(random_, 0, most);
    const Segment *segment = find([](uint8_t marker) { return marker == kInterval; });
    if (segment != nullptr && segment->end - segment->payload() >= 2 && !chance(random_, 5)) {
      jpeg_[segment->payload()] = static_cast<uint8_t>(value >> 8);
      jpeg_[segment->payload() + 1] = static_cast<uint8_t>(value);
      return;
    }
    const Segment &before = segments_[below(random_, segments_.size())];
    insert(before.begin, {0xFF, kInterval, 0, 4, static_cast<uint8_t>(value >> 8), static_cast<uint8_t>(value)});
  }

  // Segments are taken away, repeated or moved.
  void order() {
    const Segment segment = segments_[below(random_, segments_.size())];
    const Bytes copy(jpeg_.begin() + at(segment.begin), jpeg_.begin() + at(segment.end));
    const size_t to = segments_[below(random_, segments_.size())].begin;
    const size_t how = below(random_, 3);
    if (how == 0 || to <= segment.begin) {
      if (how != 1) replace(segment.begin, segment.end, {});
      if (how != 0) insert(to, copy);
    } else {
      insert(to, copy);
      if (how != 1) replace(segment.begin, segment.end, {});
    }
  }

  void insert_marker() {
    static const Bytes kMarkers[] = {
        {0xFF, 0xE0, 0, 16, 'J', 'F', 'I', 'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0},
        {0xFF, 0xEE, 0, 14, 'A', 'd', 'o', 'b', 'e', 0, 100, 0, 0, 0, 0, 1},
        {0xFF, 0xEE, 0, 14, 'A', 'd', 'o', 'b', 'e', 0, 100, 0, 0, 0, 0, 0},
        {0xFF, 0xFE, 0, 4, 'h', 'i'},
        {0xFF, 0xFF},
        {0xFF, 0x01},
        {0xFF, 0xD9},
        {0xFF, 0xDC, 0, 4, 0, 9},
    };
    insert(segments_[below(random_, segments_.size())].begin, kMarkers[below(random_, std::size(kMarkers))]);
  }

  void entropy() {
    const Segment *segment = find([](uint8_t marker) { return marker == 0; });
    if (segment == nullptr || segment->begin == segment->end) {
      anywhere();
      return;
    }
    const size_t size = segment->end - segment->begin;
    const size_t place = segment->begin + below(random_, size);
    const size_t span = std::min(segment->end - place, 1 + below(random_, chance(random_, 4) ? size : 8));
    switch (below(random_, 10)) {
      case 0:
      case 1:
        jpeg_[place] = static_cast<uint8_t>(jpeg_[place] ^ 1U << below(random_, 8));
        break;
      case 2:
        jpeg_[place] = byte();
        break;
      case 3:
        replace(place, place + span, {});
        break;
      case 4:
        jpeg_.resize(place);
        break;
      case 5: {
        const Bytes part(jpeg_.begin() + at(place), jpeg_.begin() + at(place + span));
        insert(segment->begin + below(random_, size), part);
        break;
      }
      case 6: {
        // Bits of one kind: the longest codes, and the shortest ones.
        const uint8_t fill = chance(random_, 2) ? 0xFF : 0;
        Bytes part;
        for (size_t i = 0; i < span; ++i) {
          part.push_back(fill);
          if (fill == 0xFF) part.push_back(0);
        }
        replace(place, place + span, part);
        break;
      }
      case 7:
        insert(place, {0xFF, static_cast<uint8_t>(kRestart + below(random_, 8))});
        break;
      case 8:
        restart_marker(*segment);
        break;
      default:
        by_libfuzzer(segment->begin, segment->end);
    }
  }

  // A marker that is there gets another number, goes, or comes twice; or the data ends behind it.
  void restart_marker(const Segment &segment) {
    std::vector<size_t> places;
    for (size_t i = segment.begin; i + 1 < segment.end; ++i) {
      if (jpeg_[i] == 0xFF && (jpeg_[i + 1] & 0xF8) == kRestart) places.push_back(i);
    }
    if (places.empty()) return;
    const size_t place = places[below(random_, places.size())];
    switch (below(random_, 5)) {
      case 0:
        jpeg_[place + 1] = static_cast<uint8_t>(kRestart + below(random_, 8));
        break;
      case 1:
        replace(place, place + 2, {});
        break;
      case 2:
        insert(place, {0xFF, jpeg_[place + 1]});
        break;
      case 3:
        insert(place, {0xFF});
        break;
      default:
        jpeg_.resize(place + below(random_, 3));
    }
  }

  template <typename Wanted>
  const Segment *find(const Wanted &wanted) {
    const size_t first = below(random_, segments_.size());
    for (size_t i = 0; i < segments_.size(); ++i) {
      const Segment &segment = segments_[(first + i) % segments_.size()];
      if (wanted(segment.marker)) return &segment;
    }
    return nullptr;
  }

  void set_length(const Segment &segment, size_t payload) {
    const size_t length = std::min<size_t>(payload + 2, 65535);
    if (segment.begin + 4 > jpeg_.size()) return;
    jpeg_[segment.begin + 2] = static_cast<uint8_t>(length >> 8);
    jpeg_[segment.begin + 3] = static_cast<uint8_t>(length);
  }

  void insert(size_t place, const Bytes &part) { jpeg_.insert(jpeg_.begin() + at(place), part.begin(), part.end()); }
  void replace(size_t begin, size_t end, const Bytes &part) {
    jpeg_.erase(jpeg_.begin() + at(begin), jpeg_.begin() + at(end));
    insert(begin, part);
  }
  uint8_t byte() { return static_cast<uint8_t>(below(random_, 256)); }
  static ptrdiff_t at(size_t place) { return static_cast<ptrdiff_t>(place); }

  Bytes &jpeg_;
  Random &random_;
  std::vector<Segment> segments_;
};

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
  Random random(seed);
  fuzz::Input input(data, size);
  const size_t how = below(random, 8);
  if (how == 0 || how == 1) {
    // Often one choice alone: what an image is decoded to depends on all of them together.
    uint8_t *const choice = input.choices + below(random, kChoices);
    if (chance(random, 2)) {
      *choice = static_cast<uint8_t>(below(random, 256));
    } else {
      LLVMFuzzerMutate(input.choices, kChoices, kChoices);
    }
  }
  if (how != 0) {
    Mutator mutator(&input.image, &random);
    const size_t times = chance(random, 3) ? 2 + below(random, 3) : 1;
    for (size_t i = 0; i < times; ++i) mutator.once();
  }
  if (input.image.size() + kChoices > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(input.image.begin(), input.image.end(), data);
  std::memcpy(data + input.image.size(), input.choices, kChoices);
  return input.image.size() + kChoices;
}
