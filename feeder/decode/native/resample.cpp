#include "resample.h"

#include <algorithm>
#include <cstring>

#include "prefetch.h"

namespace feeder {
namespace {

// Of an output with more taps than this, weights would be too small for products that are rounded to 16 bits one by
// one, and a ring of its rows too large for the cache: its sums have 32 bits.
constexpr int kMostTaps = 33;
constexpr int kWideWeightBits = 22;

// Rows that may come before an output row can be emitted which they are not part of: one row of MCUs.
int rows_ahead(const PlaneLayout &layout, int component) {
  int down = 1;
  for (int i = 0; i < layout.components; ++i) down = std::max(down, layout.plane[i].down);
  return 8 * down / layout.plane[component].down + 2;
}

bool same_grid(const PlaneLayout::Plane &a, const PlaneLayout::Plane &b) {
  return a.across == b.across && a.down == b.down && a.width == b.width && a.height == b.height;
}

// The first plane that has the grid of this one.
int first_like(const PlaneLayout &layout, int component) {
  int first = 0;
  while (!same_grid(layout.plane[first], layout.plane[component])) ++first;
  return first;
}

// The largest number of output rows that are begun and not emitted, where `ahead` more rows than an output needs may
// come before it is emitted.
int most_open(const Taps *taps, int outputs, int ahead) {
  int most = 1;
  for (int output = 0, open = 0; output < outputs; ++output) {
    while (open < outputs && taps[open].first < taps[output].end() + ahead) ++open;
    most = std::max(most, open - output);
  }
  return most;
}

// As the horizontal loop of a level that has columns of `rows` words, in sums of 32 bits that are rounded once.
void horizontal_wide(int rows, const int16_t *columns, const int32_t *firsts, const uint32_t *weights, int taps,
                     int outputs, int16_t *out) {
  constexpr int kShift = kRowBits + kWeightBits - kColumnBits;
  for (int output = 0; output < outputs; ++output, out += 3 * rows, weights += taps) {
    const int16_t *column = columns + static_cast<ptrdiff_t>(firsts[output]) * rows;
    int32_t sums[kMostRows];
    std::fill(sums, sums + rows, 1 << (kShift - 1));
    for (int tap = 0; tap < taps; ++tap, column += rows) {
      const auto weight = static_cast<int16_t>(weights[tap] & 0xFFFFU);
      for (int y = 0; y < rows; ++y) sums[y] += column[y] * weight;
    }
    for (int y = 0; y < rows; ++y) out[y] = static_cast<int16_t>(sums[y] >> kShift);
  }
}

// Cuts one piece of memory into parts at multiples of 64 bytes.
class Parts {
 public:
  template <typename T>
  void add(T **part, size_t count) {
    if (base_ != nullptr) *part = reinterpret_cast<T *>(base_ + used_);
    used_ += (count * sizeof(T) + 63) / 64 * 64;
  }
  // Puts the parts that were added so far into memory: adding them again, in the same order, sets the pointers.
  bool place(Scratch &memory) {
    base_ = static_cast<unsigned char *>(memory.reserve(used_));
    used_ = 0;
    return base_ != nullptr;
  }

 private:
  unsigned char *base_ = nullptr;
  size_t used_ = 0;
};

}  // namespace

bool Resampler::begin(const PlaneLayout &layout) noexcept {
  components_ = layout.components;
  ycc_ = layout.ycc;
  lasting_ = layout.lasting;
  output_row_ = group_rows_ = 0;
  return build_tables(layout) && place_planes(layout);
}

bool Resampler::build_tables(const PlaneLayout &layout) {
  const Window &window = geometry_.window;
  const auto across = [&](int component) {
    const PlaneLayout::Plane &plane = layout.plane[component];
    return Axis{geometry_.box_x,     geometry_.box_width,         geometry_.out_width, geometry_.filter,
                geometry_.antialias, {window.left, window.right}, plane.across,        smoothed(layout, component),
                plane.width};
  };
  const auto down = [&](int component) {
    const PlaneLayout::Plane &plane = layout.plane[component];
    return Axis{geometry_.box_y,     geometry_.box_height,        geometry_.out_height, geometry_.filter,
                geometry_.antialias, {window.top, window.bottom}, plane.down,           smoothed(layout, component),
                plane.height};
  };
  const auto out_width = static_cast<size_t>(geometry_.out_width);
  const auto out_height = static_cast<size_t>(geometry_.out_height);
  size_t scratch_size = 0, columns_size = 0;
  for (int i = 0; i < components_; ++i) {
    const Axis x = across(i), y = down(i);
    scratch_size = std::max({scratch_size, weigh_scratch(x), weigh_scratch(y)});
    columns_size = std::max(columns_size, static_cast<size_t>(most_taps(x)));
  }

  double *scratch = nullptr;
  Taps *column_taps = nullptr;
  int32_t *column_weights = nullptr;
  Parts tables;
  const auto lay_out = [&] {
    tables.add(&scratch, scratch_size);
    tables.add(&column_taps, out_width);
    tables.add(&column_weights, out_width * columns_size);
    for (int i = 0; i < components_; ++i) {
      if (first_like(layout, i) != i) continue;
      const auto most = static_cast<size_t>(most_taps(down(i)));
      tables.add(&plane_[i].columns.firsts, out_width);
      tables.add(&plane_[i].columns.weights, out_width * static_cast<size_t>(most_taps(across(i))));
      tables.add(&plane_[i].rows.taps, out_height);
      tables.add(&plane_[i].rows.weights, out_height * most);
      tables.add(&plane_[i].rows.narrow, out_height * most);
    }
  };
  lay_out();
  if (!tables.place(tables_)) return false;
  lay_out();

  for (int i = 0; i < components_; ++i) {
    const int like = first_like(layout, i);
    if (like != i) {
      plane_[i].columns = plane_[like].columns;
      plane_[i].rows = plane_[like].rows;
      continue;
    }
    Columns &columns = plane_[i].columns;
    columns.most = weigh(across(i), kWeightBits, scratch, column_taps, column_weights);
    columns.wide = columns.most > kMostTaps;
    for (int x = 0; x < geometry_.out_width; ++x) {
      const Taps taps = column_taps[geometry_.flip ? geometry_.out_width - 1 - x : x];
      columns.firsts[x] = taps.first;
      uint32_t *weights = columns.weights + static_cast<ptrdiff_t>(x) * columns.most;
      for (int k = 0; k < columns.most; ++k) {
        const uint32_t weight = k < taps.count ? static_cast<uint32_t>(column_weights[taps.offset + k]) & 0xFFFFU : 0U;
        weights[k] = weight | weight << 16;
      }
    }

    Rows &rows = plane_[i].rows;
    const Axis axis = down(i);
    rows.wide = most_taps(axis) > kMostTaps;
    rows.most = weigh(axis, rows.wide ? kWideWeightBits : kWeightBits, scratch, rows.taps, rows.weights);
    if (rows.wide) continue;
    const Taps last = rows.taps[out_height - 1];
    for (int32_t k = 0; k < last.offset + last.count; ++k) rows.narrow[k] = static_cast<int16_t>(rows.weights[k]);
  }
  return true;
}

bool Resampler::place_planes(const PlaneLayout &layout) {
  int words = 0, most_columns = 0;
  for (int i = 0; i < components_; ++i) {
    const PlaneRegion &region = layout.plane[i].region;
    Plane &plane = plane_[i];
    const int ahead = rows_ahead(layout, i);
    plane.samples = region.right - region.left;
    plane.words = (plane.samples + kBlock - 1) / kBlock * kBlock;
    plane.next = plane.slot = 0;
    plane.needed = plane.rows.taps[0].end();
    plane.kept = plane.rows.wide ? most_open(plane.rows.taps, geometry_.out_height, ahead)
                                 : std::min(plane.rows.most + ahead, region.bottom - region.top);
    words = std::max(words, plane.words);
    most_columns = std::max(most_columns, plane.columns.most);
  }
  const auto out_columns = static_cast<size_t>(geometry_.out_width) * 3, group_size = static_cast<size_t>(level_.rows);
  Parts pixels;
  const auto lay_out = [&] {
    for (int i = 0; i < components_; ++i) {
      Plane &plane = plane_[i];
      const auto row = static_cast<size_t>(plane.words), kept = static_cast<size_t>(plane.kept);
      pixels.add(&plane.ring, plane.rows.wide ? 0 : 2 * kept);
      pixels.add(&plane.copies, plane.rows.wide || lasting_ ? 0 : kept * row);
      pixels.add(&plane.sums, plane.rows.wide ? kept * row : 0);
      pixels.add(&plane.group, group_size * row);
    }
    pixels.add(&turned_, group_size * static_cast<size_t>(words + most_columns));
    pixels.add(&columns_, group_size * out_columns);
    pixels.add(&spare_row_, out_columns);
    for (int i = 0; i < 3 && geometry_.output == FEEDER_YUV420; ++i) {
      const int columns = i == 0 ? geometry_.out_width : chroma_columns(geometry_.out_width);
      pixels.add(&yuv_columns_[i], group_size * static_cast<size_t>(columns));
    }
  };
  lay_out();
  if (!pixels.place(pixels_)) return false;
  lay_out();
  return true;
}

void Resampler::push(int component, const uint8_t *row) noexcept {
  Plane &plane = plane_[component];
  if (plane.rows.wide) {
    add_wide(&plane, row);
  } else {
    if (!lasting_) {
      uint8_t *const copy = plane.copies + static_cast<ptrdiff_t>(plane.slot) * plane.words;
      std::memcpy(copy, row, static_cast<size_t>(plane.samples));
      row = copy;
    }
    plane.ring[plane.slot] = plane.ring[plane.slot + plane.kept] = row;
    if (++plane.slot == plane.kept) plane.slot = 0;
  }
  if (++plane.next < plane.needed) return;
  while (output_row_ < geometry_.out_height) {
    for (int i = 0; i < components_; ++i) {
      if (plane_[i].next < plane_[i].needed) return;
    }
    emit_row();
  }
}

void Resampler::add_wide(Plane *plane, const uint8_t *row) {
  const int at = plane->next;
  for (int output = output_row_; output < geometry_.out_height; ++output) {
    const Taps taps = plane->rows.taps[output];
    if (taps.first > at) break;
    if (at >= taps.end()) continue;
    const int32_t weight = plane->rows.weights[taps.offset + at - taps.first];
    int32_t *sums = plane->sums + static_cast<ptrdiff_t>(output % plane->kept) * plane->words;
    if (at == taps.first) std::fill(sums, sums + plane->words, 0);
    for (int x = 0; x < plane->samples; ++x) sums[x] += weight * (row[x] - 128);
  }
}

// Adds the next output row of all planes to the group; passes the group on when it is full or the last.
void Resampler::emit_row() {
  const auto out_row = static_cast<size_t>(geometry_.out_width) * (geometry_.output == FEEDER_RGB ? 3 : 1);
  prefetch(geometry_.out + static_cast<size_t>(output_row_) * out_row, out_row);
  for (int i = 0; i < components_; ++i) {
    const Plane &plane = plane_[i];
    const Taps taps = plane.rows.taps[output_row_];
    int16_t *out = plane.group + static_cast<ptrdiff_t>(group_rows_) * plane.words;
    if (plane.rows.wide) {
      constexpr int kShift = kWideWeightBits - kRowBits;
      const int32_t *sums = plane.sums + static_cast<ptrdiff_t>(output_row_ % plane.kept) * plane.words;
      for (int x = 0; x < plane.words; ++x) out[x] = static_cast<int16_t>((sums[x] + (1 << (kShift - 1))) >> kShift);
      continue;
    }
    int slot = plane.slot - (plane.next - taps.first);
    while (slot < 0) slot += plane.kept;
    level_.vertical(plane.ring + slot, plane.rows.narrow + taps.offset, taps.count, plane.samples, out);
  }
  ++output_row_;
  if (output_row_ < geometry_.out_height) {
    for (int i = 0; i < components_; ++i) plane_[i].needed = plane_[i].rows.taps[output_row_].end();
  }
  if (++group_rows_ == level_.rows || output_row_ == geometry_.out_height) finish_group();
}

void Resampler::finish_group() {
  const int column = level_.rows;
  for (int i = 0; i < components_; ++i) {
    const Plane &plane = plane_[i];
    const Columns &columns = plane.columns;
    int16_t *const out = columns_ + i * column;
    level_.turn(plane.group, plane.samples, plane.words, turned_);
    if (columns.wide) {
      horizontal_wide(column, turned_, columns.firsts, columns.weights, columns.most, geometry_.out_width, out);
    } else {
      level_.horizontal(turned_, columns.firsts, columns.weights, columns.most, geometry_.out_width, out);
    }
  }
  if (components_ == 1) {
    for (int16_t *pixel = columns_, *end = columns_ + 3 * column * geometry_.out_width; pixel < end;
         pixel += 3 * column) {
      std::copy(pixel, pixel + column, pixel + column);
      std::copy(pixel, pixel + column, pixel + 2 * column);
    }
  } else if (ycc_) {
    level_.ycc_to_rgb(columns_, geometry_.out_width);
  }
  if (geometry_.output == FEEDER_YUV420) {
    write_yuv420();
  } else {
    write_rows(columns_, 3 * geometry_.out_width, geometry_.out);
  }
  group_rows_ = 0;
}

// Writes the group as rows of `count` bytes, of which the first of all is at `out`.
void Resampler::write_rows(const int16_t *columns, int count, uint8_t *out) {
  uint8_t *rows[kMostRows];
  out += static_cast<ptrdiff_t>(output_row_ - group_rows_) * count;
  for (int y = 0; y < level_.rows; ++y) rows[y] = y < group_rows_ ? out + static_cast<ptrdiff_t>(y) * count : spare_row_;
  level_.finish(columns, count, rows);
}

void Resampler::write_yuv420() {
  const int width = geometry_.out_width, chroma_width = width / 2;
  level_.rgb_to_yuv420(columns_, width, yuv_columns_[0], yuv_columns_[1], yuv_columns_[2]);
  write_rows(yuv_columns_[0], width, geometry_.out);
  uint8_t *plane = geometry_.out + static_cast<ptrdiff_t>(width) * geometry_.out_height;
  for (int i = 1; i < 3; ++i, plane += static_cast<ptrdiff_t>(chroma_width) * (geometry_.out_height / 2)) {
    // The height is even, and groups but the last are: no four pixels are divided by groups.
    uint8_t *const out = plane + static_cast<ptrdiff_t>((output_row_ - group_rows_) / 2) * chroma_width;
    uint8_t *rows[kMostRows];
    for (int word = 0; word < level_.rows; ++word) {
      const int row = word / 8 * 4 + word % 4, x = word % 8 < 4 ? 0 : chroma_distance(width);
      rows[word] = 2 * row < group_rows_ ? out + static_cast<ptrdiff_t>(row) * chroma_width + x : spare_row_;
    }
    level_.finish(yuv_columns_[i], chroma_columns(width), rows);
  }
}

}  // namespace feeder
