// Decodes the window of a baseline JPEG without libjpeg, to the same samples.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "huffman.h"
#include "jpeg_crop.h"
#include "planes.h"
#include "scan.h"
#include "scratch.h"
#include "seek.h"
#include "sink.h"
#include "stream.h"

namespace feeder {

enum class Baseline {
  kDone,
  kNotMine,  // unusual, or damaged where the window needs it: libjpeg decides
  kNoMemory
};

// The seek points that a caller has of an image, and what became of them.
struct Seek {
  uint8_t *stored;  // kSeekBytes, written where more was learned; nullptr: none
  bool used;        // MCUs were passed over by them
  bool grew;        // they were written
  bool refused;     // what was there contradicts the image
};

class BaselineDecoder {
 public:
  explicit BaselineDecoder(const Planes &planes) : planes_(planes) {}

  // Decodes what a window of one image needs into the sink; without a sink, only to coefficients, which are dropped.
  // window lies within the image if that is header.width x header.height. Where this returns kNotMine, rows may have
  // been pushed; where it refuses seek points, it begins the sink again.
  Baseline decode(const uint8_t *data, size_t size, const feeder_header &header, const Window &window, PlaneSink *sink,
                  Seek *seek) noexcept;

  // Decodes all of an image's scan for its points.
  Baseline learn(const uint8_t *data, size_t size, Seek *seek) noexcept;

 private:
  // Blocks of one component, and those that the window needs of it.
  struct Plane {
    int h, v;                      // blocks of an MCU across and down
    int left, right, top, bottom;  // blocks that are transformed
    ptrdiff_t stride;
    uint8_t *samples;              // kRoom rows of MCUs
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

  // Decodes rows of MCUs; two of them do so in turn.
  struct Lane {
    Stream stream;
    int row, end_row;  // of the segment at hand; nothing is left of it where they are equal
    int end_point;     // of the segment
    int columns;       // of MCUs that are left in the row
    int run;           // MCUs of the run at hand; 0: there is none
    Target target[kMaxBlocks];
    alignas(64) int16_t coefficients[kRunBlocks * kBlockSamples];
    uint8_t lasts[kRunBlocks];
  };

  // Rows of MCUs that a plane has room for: those of the lanes, and what one of them can be ahead of the other.
  static constexpr int kRoom = 4;

  bool plan_scan();
  void plan_planes(const Window &window);
  bool build_tables();
  bool place_planes();
  int rows_to_read() const;
  int rows_known() const { return points_.grid.mcu(points_.known()) / mcu_columns_; }
  Baseline decode_scan(int rows, uint32_t choice, PlaneSink *sink, Seek *seek);
  Baseline decode_rows(int rows, uint32_t choice, PlaneSink *sink);
  Baseline decode_known(int top, int bottom, uint32_t choice, PlaneSink *sink);
  Baseline decode_in_order(int top, int bottom, PlaneSink *sink);
  int end_point(int row) const;
  bool begin_stream(Stream *stream, int point, int end);
  bool begin_row(Lane *lane);
  int longest_run(const Lane &lane) const { return std::min(lane.columns, kRunBlocks / plan_.blocks); }
  bool begin_run(Lane *lane);
  bool end_segment(Lane *lane, bool checked);
  void transform_run(Lane *lane);
  void push_rows(int row, PlaneSink *sink) const;

  const Planes &planes_;
  Scan scan_ = {};
  PlaneLayout layout_ = {};
  McuPlan plan_ = {};
  Plane plane_[kMaxComponents] = {};
  int mcu_columns_ = 0, mcu_rows_ = 0;
  int mcu_left_ = 0, mcu_right_ = 0;
  int needed_top_ = 0, needed_bottom_ = 0;  // rows of MCUs with blocks that are transformed
  bool transforms_ = false;                 // else coefficients are dropped
  size_t scan_end_ = 0;                     // byte of the file that the scan ends before
  SeekPoints points_;
  Lane lane_[2] = {};
  alignas(64) AcTable ac_[kMaxComponents];
  DcTable dc_[kMaxComponents];
  Scratch samples_;
};

}  // namespace feeder
