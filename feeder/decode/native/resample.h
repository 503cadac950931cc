// Separable resampling of planes as they stream out of a decoder: each plane's rows are weighed vertically while they
// are warm, then horizontally at output height; pixels are made of them at output size. YUV 4:2:0 is made of those, R, G
// and B in whole levels, so that it is exactly what the RGB output says.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg_crop.h"
#include "resample_level.h"
#include "scratch.h"
#include "sink.h"
#include "weights.h"

namespace feeder {

// What is resampled to what. The box, which may begin and end within a pixel and lies within the window, is stretched
// over the output. Pixels outside of the window have no weight.
struct Geometry {
  Window window;
  double box_x, box_y, box_width, box_height;  // pixels of the image, as the window
  int out_width, out_height;
  feeder_filter filter;
  bool antialias;
  bool flip;
  feeder_output output;
  uint8_t *out;  // as in feeder_request
};

// Smoothing is part of the weights of chroma, so that pixels are not those of a full decode rounded to bytes, but a
// little nearer to what the file says.
class Resampler : public PlaneSink {
 public:
  explicit Resampler(const Level &level) : level_(level) {}

  // What the next image becomes; the regions of its layout are those of the window.
  void aim(const Geometry &geometry) { geometry_ = geometry; }

  bool begin(const PlaneLayout &layout) noexcept override;
  void push(int component, const uint8_t *row) noexcept override;

 private:
  struct Rows {  // for each output row
    Taps *taps;
    int32_t *weights;
    int16_t *narrow;  // weights in Q14, as the vertical loop wants them
    int most;         // taps
    bool wide;
  };
  struct Columns {  // for each output column
    int32_t *firsts;
    uint32_t *weights;  // `most` each
    int most;
    bool wide;
  };
  struct Plane {
    Rows rows;
    Columns columns;
    int samples;           // that count, of a row
    int words;             // of a row
    int next;              // row to come
    int needed;            // rows before the next output row can be emitted
    int kept;              // rows in the ring
    int slot;              // of the ring, where the row to come goes
    const uint8_t **ring;  // the last rows; twice, so that those of an output are behind each other wherever they begin
    uint8_t *copies;       // what the ring points to, where rows don't last
    int32_t *sums;         // where wide: a ring of sums of output rows
    int16_t *group;        // output rows of the group
  };

  bool build_tables(const PlaneLayout &layout);
  bool place_planes(const PlaneLayout &layout);
  void add_wide(Plane *plane, const uint8_t *row);
  void emit_row();
  void finish_group();
  void write_rows(const int16_t *columns, int count, uint8_t *out);
  void write_yuv420();

  const Level &level_;
  Geometry geometry_ = {};
  int components_ = 0;
  bool ycc_ = false, lasting_ = false;
  Plane plane_[kMaxPlanes] = {};
  int output_row_ = 0;  // next to emit
  int group_rows_ = 0;  // in the group so far
  int16_t *turned_ = nullptr;   // the group's columns of one plane
  int16_t *columns_ = nullptr;  // of the output
  int16_t *yuv_columns_[3] = {};  // of YUV 4:2:0
  uint8_t *spare_row_ = nullptr;
  Scratch tables_, pixels_;
};

}  // namespace feeder
