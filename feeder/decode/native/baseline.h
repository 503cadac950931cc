// Decodes the window of a baseline JPEG without libjpeg, to the same pixels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "huffman.h"
#include "planes.h"
#include "resample.h"
#include "scan.h"
#include "scratch.h"

namespace feeder {

enum class Baseline {
  kDone,
  kNotMine,  // unusual, or damaged where the window needs it: libjpeg decides
  kNoMemory
};

// A window in pixels; right and bottom are behind it.
struct Window {
  int left, top, right, bottom;
};

class BaselineDecoder {
 public:
  explicit BaselineDecoder(const Planes &planes) : planes_(planes) {}

  // Decodes the window of one image into the resampler, whose output goes to out; geometry is for the rows and columns
  // of the window. window lies within the image if that is header.width x header.height. Where this returns kNotMine,
  // rows may have been written.
  Baseline decode(const uint8_t *data, size_t size, const feeder_header &header, const Window &window,
                  const Geometry &geometry, Resampler *resampler, uint8_t *out) noexcept;

 private:
  // Blocks of one component, and the samples that the window needs of it.
  struct Plane {
    int h, v;                      // blocks of an MCU across and down
    int left, right, top, bottom;  // blocks that are transformed
    int columns;                   // samples a row, from the first block on
    int width, height;             // samples of the whole image
    int ring_rows;
    ptrdiff_t stride;
    uint8_t *samples;              // ring_rows rows
    const uint8_t *row(int y) const { return samples + (y % ring_rows) * stride; }
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
  void emit_row(int y, const Window &window, uint8_t *to);
  const uint8_t *chroma_row(int component, int y, int first, int end, uint8_t *out) const;

  const Planes &planes_;
  Scan scan_ = {};
  EntropyReader reader_ = {};
  McuPlan plan_ = {};
  Plane plane_[kMaxComponents] = {};
  Target target_[kMaxBlocks] = {};
  int mcu_columns_ = 0, mcu_rows_ = 0;
  int mcu_left_ = 0, mcu_right_ = 0;
  uint8_t *chroma_[2] = {};
  alignas(64) int16_t coefficients_[kMaxBlocks * kBlockSamples];
  uint8_t lasts_[kMaxBlocks];
  alignas(64) AcTable ac_[kMaxComponents];
  DcTable dc_[kMaxComponents];
  Scratch bytes_, samples_;
};

}  // namespace feeder
