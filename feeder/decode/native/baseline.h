// Decodes the window of a baseline JPEG without libjpeg, to the same samples.
#pragma once

#include <cstddef>
#include <cstdint>

#include "huffman.h"
#include "jpeg_crop.h"
#include "planes.h"
#include "scan.h"
#include "scratch.h"
#include "sink.h"

namespace feeder {

enum class Baseline {
  kDone,
  kNotMine,  // unusual, or damaged where the window needs it: libjpeg decides
  kNoMemory
};

class BaselineDecoder {
 public:
  explicit BaselineDecoder(const Planes &planes) : planes_(planes) {}

  // Decodes what a window of one image needs into the sink. window lies within the image if that is header.width x
  // header.height. Where this returns kNotMine, rows may have been pushed.
  Baseline decode(const uint8_t *data, size_t size, const feeder_header &header, const Window &window,
                  PlaneSink *sink) noexcept;

 private:
  // Blocks of one component, and those that the window needs of it.
  struct Plane {
    int h, v;                      // blocks of an MCU across and down
    int left, right, top, bottom;  // blocks that are transformed
    ptrdiff_t stride;
    uint8_t *samples;              // of the row of MCUs at hand
  };

  // Where the blocks of an MCU go: one for each in McuPlan.
  struct Target {
    bool needed;       // in this row of MCUs
    unsigned column;   // of blocks, from the first one that is transformed; huge before it
    unsigned columns;  // that are transformed
    unsigned step;     // columns from MCU to MCU
    const uint16_t *quant;
    uint8_t *samples;  // of column 0
    ptrdiff_t stride;
  };

  void plan_planes(const Window &window);
  bool build_tables();
  bool place_planes();
  bool decode_mcu_row(int row);
  bool aim(int row);
  void transform_mcu();
  void push_rows(int row, PlaneSink *sink) const;

  const Planes &planes_;
  Scan scan_ = {};
  PlaneLayout layout_ = {};
  EntropyReader reader_ = {};
  McuPlan plan_ = {};
  Plane plane_[kMaxComponents] = {};
  Target target_[kMaxBlocks] = {};
  int mcu_columns_ = 0, mcu_rows_ = 0;
  int mcu_left_ = 0, mcu_right_ = 0;
  alignas(64) int16_t coefficients_[kMaxBlocks * kBlockSamples];
  uint8_t lasts_[kMaxBlocks];
  alignas(64) AcTable ac_[kMaxComponents];
  DcTable dc_[kMaxComponents];
  Scratch bytes_, samples_;
};

}  // namespace feeder
