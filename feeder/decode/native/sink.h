// The wall between the two halves of the kernel: decoders push rows of Y, Cb and Cr at their own size, and what takes
// them makes pixels of them, or keeps them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feeder {

constexpr int kMaxPlanes = 3;

// What may be read behind the end of a row that lasts, whatever is there.
constexpr int kRowPadding = 64;

// A window in pixels; right and bottom are behind it.
struct Window {
  int left, top, right, bottom;
};

// Samples of a plane; right and bottom are behind it.
struct PlaneRegion {
  int left, top, right, bottom;
};

struct PlaneLayout {
  int components;     // 1 or 3
  bool ycc;           // three components are Y, Cb and Cr (else R, G and B)
  int width, height;  // pixels of the whole image, at the scale that it is decoded at
  bool smooth;        // chroma may be smoothed: not where the image is decoded at 1/8
  bool lasting;       // pushed rows stay where they are until the last one of the image is pushed
  struct Plane {
    int width, height;  // samples of the whole plane
    int across, down;   // pixels a sample: 1 to 4
    PlaneRegion region;  // what is pushed
  } plane[kMaxPlanes];
};

// Samples or pixels of one axis; end is behind it.
struct Span {
  int begin, end;
};

// Whether libjpeg makes the pixels of a plane by a triangle filter between its samples; else it repeats them.
bool smoothed(const PlaneLayout &layout, int component);

// The samples that pixels are made of, of one axis of a plane that has `samples` of them with `each` pixels: those under
// them, and where it is smoothed the neighbours that the outer pixels lean to.
Span samples_of(Span pixels, int each, bool smooth, int samples);

// Sets the regions to the samples that a window of the image, which lies within it, is made of.
void set_regions(const Window &window, PlaneLayout *layout);

// Takes the regions of an image: rows of MCUs from top to bottom, of each all rows of one component after the other, or
// in turns. A row of MCUs is at most 8 rows of the component with the fewest, and no row of the next one comes before it
// is complete. A decoder may give up at any time, and another one begin again.
class PlaneSink {
 public:
  virtual ~PlaneSink() = default;

  // False: no memory.
  virtual bool begin(const PlaneLayout &layout) noexcept = 0;

  // The next row of the component's region, from region.left. The row is read before this returns, or, where rows last,
  // at any time, and then kRowPadding bytes behind its end can be read, too.
  virtual void push(int component, const uint8_t *row) noexcept = 0;
};

}  // namespace feeder
