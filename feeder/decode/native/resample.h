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

// What one output is made of: `count` source pixels from `first`, with the weights from `offset`.
struct Taps {
  int32_t first, count, offset;
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
  void push_wide() noexcept;
  void finish_row() noexcept;

  const Level &level_;
  Geometry geometry_ = {};
  int margin_ = 0;
  int blocks_ = 0;             // of the source pixels that count
  int source_row_ = 0;         // next to come
  int output_row_ = 0;         // next to emit
  int group_rows_ = 0;         // rows in the group so far
  uint8_t *out_ = nullptr;

  Taps *rows_ = nullptr;       // for each output row
  int32_t *sum_weights_ = nullptr;  // of rows: Q14, or Q22 where wide
  int16_t *row_weights_ = nullptr;  // the same in Q14, as the vertical loop wants them
  int32_t *firsts_ = nullptr;  // for each output column, its first pair and
  uint32_t *pair_weights_ = nullptr;  // the weights of
  int pairs_ = 0;              // so many pairs

  uint8_t *source_ = nullptr;  // one row as it came
  int16_t *ring_ = nullptr;    // the last ring_rows_ rows, widened
  int ring_rows_ = 0;
  const int16_t **tap_rows_ = nullptr;
  int16_t *between_ = nullptr;
  uint8_t *rgbx_ = nullptr;
  bool wide_ = false;
  int32_t *sums_ = nullptr;    // wide only: a ring of rows of 32-bit sums
  Scratch tables_, pixels_;
};

}  // namespace feeder
