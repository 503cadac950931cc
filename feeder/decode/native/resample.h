// Separable resampling of planes as they stream out of a decoder: each plane's rows are weighed vertically while they
// are warm, then horizontally at output height; pixels are made of them at output size. For YUV 4:2:0 the planes are the
// output, chroma as the mean of 2x2 of what it is at output size, which is a matter of its weights alone.
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
  // Planes whose rows are emitted together.
  struct Part {
    int first, last;    // planes; last is behind them
    int width, height;  // of the output
    size_t row_bytes;   // of the output
    uint8_t *out;
    int row;            // next to emit
    int group_rows;     // in the group so far
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

  // What a plane's rows become.
  Part &part_of(int component) { return parts_[planar_ ? component : 0]; }

  void divide();
  bool build_tables(const PlaneLayout &layout);
  bool place_planes(const PlaneLayout &layout);
  void add_wide(const Part &part, Plane *plane, const uint8_t *row);
  void emit_row(Part *part);
  void finish_group(Part *part);

  const Level &level_;
  Geometry geometry_ = {};
  int components_ = 0;
  bool ycc_ = false, lasting_ = false;
  bool planar_ = false;     // each plane is a part of its own
  bool converted_ = false;  // pixels are R, G and B, and become YUV 4:2:0
  Plane plane_[kMaxPlanes] = {};
  Part parts_[kMaxPlanes] = {};
  int16_t *turned_ = nullptr;   // the group's columns of one plane
  int16_t *columns_ = nullptr;  // of the output
  uint8_t *spare_row_ = nullptr;
  uint8_t *rgb_rows_ = nullptr;  // of a group, where they are converted
  Scratch tables_, pixels_;
};

}  // namespace feeder
