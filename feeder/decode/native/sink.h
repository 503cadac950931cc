// The wall between the two halves of the kernel: decoders push rows of Y, Cb and Cr at their own size, and what takes
// them makes pixels of them, or keeps them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feeder {

constexpr int kMaxPlanes = 3;

// What may be read behind the end of a pushed row, whatever is there.
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
  struct Plane {
    int width, height;  // samples of the whole plane
    int across, down;   // pixels a sample: 1 to 4
    PlaneRegion region;  // what is pushed
  } plane[kMaxPlanes];
};

// Whether libjpeg makes the pixels of a plane by a triangle filter between its samples; else it repeats them.
bool smoothed(const PlaneLayout::Plane &plane);

// Sets the regions to the samples that a window of the image is made of: where a plane is smoothed, one more than lie
// under it. The window lies within the image.
void set_regions(const Window &window, PlaneLayout *layout);

// Takes the regions of an image. Components come in any order as they get ready, each row by row. A decoder may give up
// at any time, and another one begin again.
class PlaneSink {
 public:
  virtual ~PlaneSink() = default;

  // False: no memory.
  virtual bool begin(const PlaneLayout &layout) noexcept = 0;

  // The next row of the component's region, from region.left. kRowPadding bytes behind its end can be read, too; the
  // row is read before this returns.
  virtual void push(int component, const uint8_t *row) noexcept = 0;
};

}  // namespace feeder
