#include "sink.h"

#include <algorithm>

namespace feeder {

Span samples_of(Span pixels, int each, bool smooth, int samples) {
  Span span = {pixels.begin / each, (pixels.end - 1) / each + 1};
  if (smooth && each == 2) span = {(pixels.begin + 1) / 2 - 1, pixels.end / 2 + 1};
  return {std::max(span.begin, 0), std::min(span.end, samples)};
}

bool smoothed(const PlaneLayout &layout, int component) {
  const PlaneLayout::Plane &plane = layout.plane[component];
  if (!layout.smooth || plane.down > 2) return false;
  return plane.across == 2 ? plane.width > 2 : plane.across == 1 && plane.down == 2;
}

void set_regions(const Window &window, PlaneLayout *layout) {
  for (int i = 0; i < layout->components; ++i) {
    PlaneLayout::Plane &plane = layout->plane[i];
    const bool smooth = smoothed(*layout, i);
    const Span columns = samples_of({window.left, window.right}, plane.across, smooth, plane.width);
    const Span rows = samples_of({window.top, window.bottom}, plane.down, smooth, plane.height);
    plane.region = {columns.begin, rows.begin, columns.end, rows.end};
  }
}

}  // namespace feeder
