// A sink that keeps the planes of an image in memory.
#pragma once

#include "scratch.h"
#include "sink.h"

namespace feeder {

class PlaneStore : public PlaneSink {
 public:
  bool begin(const PlaneLayout &layout) noexcept override;
  void push(int component, const uint8_t *row) noexcept override;

  const PlaneLayout &layout() const { return layout_; }
  ptrdiff_t stride(int component) const { return stride_[component]; }

  // Row y of the plane, from the left edge of the region.
  const uint8_t *row(int component, int y) const {
    return rows_[component] + (y - layout_.plane[component].region.top) * stride_[component];
  }

 private:
  PlaneLayout layout_ = {};
  uint8_t *rows_[kMaxPlanes] = {}, *next_[kMaxPlanes] = {};
  ptrdiff_t stride_[kMaxPlanes] = {};  // bytes
  Scratch memory_;
};

}  // namespace feeder
