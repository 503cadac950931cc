#include "stored_planes.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "prefetch.h"

namespace feeder {
namespace {

constexpr int kMaxSide = 65535;
// So many rows ahead samples are fetched: what is kept is larger than any cache.
constexpr size_t kRowsAhead = 8;

size_t columns_of(const PlaneRegion &region) { return static_cast<size_t>(region.right - region.left); }
size_t rows_of(const PlaneRegion &region) { return static_cast<size_t>(region.bottom - region.top); }

feeder_layout to_facts(const PlaneLayout &layout) {
  feeder_layout facts = {};
  facts.components = layout.components;
  facts.ycc = layout.ycc ? 1 : 0;
  facts.smooth = layout.smooth ? 1 : 0;
  facts.width = layout.width;
  facts.height = layout.height;
  for (int i = 0; i < layout.components; ++i) {
    const PlaneLayout::Plane &plane = layout.plane[i];
    facts.plane[i] = {plane.width,       plane.height,     plane.across,       plane.down,
                      plane.region.left, plane.region.top, plane.region.right, plane.region.bottom};
  }
  return facts;
}

// False where the facts are not those of an image.
bool from_facts(const feeder_layout &facts, PlaneLayout *layout) {
  if (facts.components != 1 && facts.components != 3) return false;
  if (facts.width < 1 || facts.width > kMaxSide || facts.height < 1 || facts.height > kMaxSide) return false;
  layout->components = facts.components;
  layout->ycc = facts.ycc != 0;
  layout->smooth = facts.smooth != 0;
  layout->width = facts.width;
  layout->height = facts.height;
  for (int i = 0; i < facts.components; ++i) {
    const auto &from = facts.plane[i];
    if (from.across < 1 || from.across > 4 || from.down < 1 || from.down > 4) return false;
    if (from.width != (facts.width + from.across - 1) / from.across) return false;
    if (from.height != (facts.height + from.down - 1) / from.down) return false;
    if (from.left < 0 || from.left >= from.right || from.right > from.width) return false;
    if (from.top < 0 || from.top >= from.bottom || from.bottom > from.height) return false;
    layout->plane[i] = {from.width, from.height, from.across, from.down,
                        {from.left, from.top, from.right, from.bottom}};
  }
  return true;
}

bool within(const PlaneRegion &inner, const PlaneRegion &outer) {
  return inner.left >= outer.left && inner.right <= outer.right && inner.top >= outer.top &&
         inner.bottom <= outer.bottom;
}

}  // namespace

bool PlaneStore::begin(const PlaneLayout &layout) noexcept {
  planes_->layout = to_facts(layout);
  size_t bytes = 0;
  for (int i = 0; i < layout.components; ++i) bytes += columns_of(layout.plane[i].region) * rows_of(layout.plane[i].region);
  std::free(planes_->samples[0]);
  auto *at = static_cast<uint8_t *>(std::malloc(bytes));
  planes_->samples[0] = at;
  if (at == nullptr) return false;
  for (int i = 0; i < layout.components; ++i) {
    const PlaneRegion &region = layout.plane[i].region;
    planes_->samples[i] = next_[i] = at;
    columns_[i] = columns_of(region);
    at += columns_of(region) * rows_of(region);
  }
  return true;
}

void PlaneStore::push(int component, const uint8_t *row) noexcept {
  std::memcpy(next_[component], row, columns_[component]);
  next_[component] += columns_[component];
}

feeder_status push_stored(const feeder_planes &planes, const Window &window, Scratch *memory, PlaneSink *sink) {
  PlaneLayout stored = {};
  if (!from_facts(planes.layout, &stored)) return FEEDER_OUTSIDE;
  if (window.right > stored.width || window.bottom > stored.height) return FEEDER_OUTSIDE;
  PlaneLayout layout = stored;
  set_regions(window, &layout);
  layout.lasting = true;
  int coarsest = 1;
  size_t copies = 0;
  for (int i = 0; i < layout.components; ++i) {
    if (!within(layout.plane[i].region, stored.plane[i].region)) return FEEDER_OUTSIDE;
    coarsest = std::max(coarsest, layout.plane[i].down);
    copies += kRowPadding * (columns_of(layout.plane[i].region) + kRowPadding);
  }
  auto *copy = static_cast<uint8_t *>(memory->reserve(copies));
  if (copy == nullptr || !sink->begin(layout)) return FEEDER_NO_MEMORY;

  // As many rows of each plane as lie under one of the coarsest.
  int next[kMaxPlanes];
  for (int i = 0; i < layout.components; ++i) next[i] = layout.plane[i].region.top;
  for (int y = window.top / coarsest * coarsest - coarsest; y < window.bottom + coarsest; y += coarsest) {
    for (int i = 0; i < layout.components; ++i) {
      const PlaneRegion &region = layout.plane[i].region, &all = stored.plane[i].region;
      const size_t stride = columns_of(all), columns = columns_of(region);
      const uint8_t *const end = planes.samples[i] + stride * rows_of(all);
      for (; next[i] < region.bottom && next[i] * layout.plane[i].down < y + coarsest; ++next[i]) {
        const uint8_t *row =
            planes.samples[i] + static_cast<size_t>(next[i] - all.top) * stride + (region.left - all.left);
        const auto left = static_cast<size_t>(end - row);
        if (left > kRowsAhead * stride) prefetch(row + kRowsAhead * stride, columns);
        // Behind the last rows, at most kRowPadding of them, is too little to read.
        if (left < columns + kRowPadding) {
          std::memcpy(copy, row, columns);
          row = copy;
          copy += columns + kRowPadding;
        }
        sink->push(i, row);
      }
    }
  }
  return FEEDER_OK;
}

}  // namespace feeder
