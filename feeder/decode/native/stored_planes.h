// Planes in memory: a sink that keeps what is pushed, and the way back from there to another sink.
#pragma once

#include "jpeg_crop.h"
#include "scratch.h"
#include "sink.h"

namespace feeder {

class PlaneStore : public PlaneSink {
 public:
  // *planes gets what is pushed; its samples come from malloc and are the caller's, also where decoding fails.
  explicit PlaneStore(feeder_planes *planes) : planes_(planes) {}

  bool begin(const PlaneLayout &layout) noexcept override;
  void push(int component, const uint8_t *row) noexcept override;

 private:
  feeder_planes *planes_;
  uint8_t *next_[kMaxPlanes] = {};
  size_t columns_[kMaxPlanes] = {};
};

// Pushes what a window needs of stored planes. FEEDER_OUTSIDE where they don't hold it, or are not those of an image;
// else FEEDER_OK or FEEDER_NO_MEMORY. Rows near the end of the planes' memory are copied to scratch memory first.
feeder_status push_stored(const feeder_planes &planes, const Window &window, Scratch *memory, PlaneSink *sink);

}  // namespace feeder
