// Separable resampling of rows as they stream out of a decoder: rows are weighed vertically while they are warm,
// then horizontally at output height.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg_crop.h"
#include "resample_level.h"
#include "scratch.h"

namespace feeder {

// What is resampled to what. The source is a grid of in_width x in_height pixels; its box, which may begin and end
// within a pixel, is stretched over the output. Pixels outside of the source have no weight.
struct Geometry {
  int in_width, in_height;
  double box_x, box_y, box_width, box_height;  // source pixels
  int out_width, out_height;
  feeder_filter filter;
  bool antialias;
  bool flip;
};

// Weights of one axis.
struct Axis {
  Taps *taps = nullptr;         // for each output
  int32_t *offsets = nullptr;   // of its first weight
  int32_t *weights = nullptr;   // Q14, or Q22 where the axis is wide
  uint32_t *pairs = nullptr;    // horizontal only: two Q14 a pair
  int most = 0;                 // largest count
};

class Resampler {
 public:
  explicit Resampler(const Level &level) : level_(level) {}

  // Prepares for in_height rows. Source rows are written with `margin` pixels before and any number behind the
  // in_width that count, row_pixels in all. False when memory is short.
  bool begin(const Geometry &geometry, int margin, int row_pixels, uint8_t *out) noexcept;

  // Where the next source row goes: row_pixels of RGBX.
  uint8_t *next_row() noexcept;

  // Takes the row that was written to next_row(); writes the output rows that it completes.
  void push_row() noexcept;

 private:
  void emit_row() noexcept;
  void push_wide(const uint8_t *row) noexcept;
  void finish_group() noexcept;

  const Level &level_;
  Geometry geometry_ = {};
  Axis columns_, rows_;
  int16_t *row_weights_ = nullptr;  // rows_.weights as the vertical loop wants them
  bool wide_ = false;
  int margin_ = 0;
  int blocks_ = 0;
  size_t row_stride_ = 0;       // bytes from one source row to the next in the ring
  int ring_rows_ = 0;
  int source_row_ = 0;          // next to come
  int output_row_ = 0;          // next to emit
  int group_rows_ = 0;          // rows in the group so far
  uint8_t *out_ = nullptr;
  uint8_t *ring_ = nullptr;
  const uint8_t **tap_rows_ = nullptr;
  int16_t *between_ = nullptr;
  uint8_t *rgbx_ = nullptr;
  int32_t *sums_ = nullptr;     // wide only: a ring of rows of samples
  Scratch tables_, pixels_, sum_rows_;
};

}  // namespace feeder
