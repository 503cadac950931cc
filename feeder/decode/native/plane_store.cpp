#include "plane_store.h"

#include <cstring>

namespace feeder {

bool PlaneStore::begin(const PlaneLayout &layout) noexcept {
  layout_ = layout;
  size_t bytes = kRowPadding;
  for (int i = 0; i < layout.components; ++i) {
    const PlaneRegion &region = layout.plane[i].region;
    stride_[i] = (region.right - region.left + 63) / 64 * 64;
    bytes += static_cast<size_t>(stride_[i]) * static_cast<size_t>(region.bottom - region.top);
  }
  auto *at = static_cast<uint8_t *>(memory_.reserve(bytes));
  if (at == nullptr) return false;
  for (int i = 0; i < layout.components; ++i) {
    rows_[i] = next_[i] = at;
    at += stride_[i] * (layout.plane[i].region.bottom - layout.plane[i].region.top);
  }
  return true;
}

void PlaneStore::push(int component, const uint8_t *row) noexcept {
  const PlaneRegion &region = layout_.plane[component].region;
  std::memcpy(next_[component], row, static_cast<size_t>(region.right - region.left));
  next_[component] += stride_[component];
}

}  // namespace feeder
