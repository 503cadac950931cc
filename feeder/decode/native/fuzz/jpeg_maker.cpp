#include "jpeg_maker.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <numeric>

#include <jpeglib.h>

namespace fuzz {
namespace {

// A longjmp out of libjpeg's callbacks passes frames of libjpeg only, and of functions here without destructors.
struct ErrorManager {
  jpeg_error_mgr base;
  jmp_buf escape;
};

[[noreturn]] void fail(j_common_ptr info) { std::longjmp(reinterpret_cast<ErrorManager *>(info->err)->escape, 1); }
void ignore_message(j_common_ptr, int) {}
void ignore_output(j_common_ptr) {}

jpeg_error_mgr *silent_errors(ErrorManager *errors) {
  jpeg_std_error(&errors->base);
  errors->base.error_exit = fail;
  errors->base.emit_message = ignore_message;
  errors->base.output_message = ignore_output;
  return &errors->base;
}

// A table with codes for `symbols` symbols in random order: leaves of a random tree, one of which stays free, for the
// code of ones only that JPEG keeps back.
void fill_table(Random &random, int symbols, JHUFF_TBL *table) {
  int leaves[17] = {0, 2};  // by depth
  for (int count = 2; count < symbols + 1;) {
    // Deep splits make the long codes that look-up tables don't hold.
    int depth = draw(random, 1, 15);
    while (leaves[depth] == 0) depth = depth % 15 + 1;
    --leaves[depth];
    leaves[depth + 1] += 2;
    ++count;
  }
  int deepest = 16;
  while (leaves[deepest] == 0) --deepest;
  --leaves[deepest];
  for (int depth = 0; depth <= 16; ++depth) table->bits[depth] = static_cast<UINT8>(leaves[depth]);
  std::iota(table->huffval, table->huffval + 256, UINT8{0});
  for (int i = symbols - 1; i > 0; --i) std::swap(table->huffval[i], table->huffval[draw(random, 0, i)]);
  table->sent_table = FALSE;
}

// Too many leaves of one depth don't fit the byte that counts them.
bool fits(const JHUFF_TBL &table, int symbols) {
  int total = 0;
  for (int depth = 1; depth <= 16; ++depth) total += table.bits[depth];
  return total == symbols;
}

void choose_coding(Random &random, jpeg_compress_struct *info) {
  const int mcu_columns = std::max(1, static_cast<int>(info->image_width) / 16);
  const int intervals[] = {0, 0, 0, 1, 1, 2, 3, draw(random, 1, 40), mcu_columns, 2 * mcu_columns, 65535};
  info->restart_interval = static_cast<unsigned int>(intervals[below(random, std::size(intervals))]);
  info->restart_in_rows = 0;
  info->optimize_coding = chance(random, 2) ? TRUE : FALSE;
  if (chance(random, 10)) {
    jpeg_simple_progression(info);
  } else if (chance(random, 12)) {
    info->arith_code = TRUE;
  } else if (info->optimize_coding == FALSE && chance(random, 2)) {
    for (int i = 0; i < 2; ++i) {
      fill_table(random, 12, info->dc_huff_tbl_ptrs[i]);
      do fill_table(random, 256, info->ac_huff_tbl_ptrs[i]);
      while (!fits(*info->ac_huff_tbl_ptrs[i], 256));
    }
  }
  if (chance(random, 6)) info->write_JFIF_header = FALSE;
  if (chance(random, 6)) info->write_Adobe_marker = TRUE;
}

// Coefficients that baseline coding can carry: DC within 2047 of the one before, AC within 1023.
void fill_block(Random &random, int kind, const UINT16 *quant, JCOEF *block) {
  const bool large = kind == 0;
  const int bound = large ? 1023 : std::max(1, 1000 / quant[0]);
  block[0] = static_cast<JCOEF>(draw(random, -bound, bound));
  const int count = kind == 1 ? 0 : large ? 63 : kind == 2 ? draw(random, 0, 3) : draw(random, 0, 12);
  for (int i = 0; i < count; ++i) {
    const int k = draw(random, 1, kind == 3 ? 7 : 63);
    const int most = large ? (chance(random, 8) ? 1023 : 40) : std::max(1, 600 / (k * quant[k]));
    block[k] = static_cast<JCOEF>(draw(random, -most, most));
  }
}

struct Recipe {
  Random *random;
  int width, height, components;
  int h[3], v[3];
  int kind;
  unsigned int quant[2][DCTSIZE2];
};

Recipe draw_recipe(Random &random) {
  static constexpr int kFactors[][2] = {{1, 1}, {1, 1}, {2, 1}, {2, 2}, {2, 2}, {1, 2}, {4, 1}, {1, 4}, {4, 2}, {3, 1}};
  Recipe recipe = {};
  recipe.random = &random;
  recipe.width = chance(random, 12) ? draw(random, 1, 400) : draw(random, 1, 50);
  recipe.height = chance(random, 12) ? draw(random, 1, 400) : draw(random, 1, 50);
  if (recipe.width * recipe.height > 8000) recipe.height = draw(random, 1, 20);
  if (chance(random, 40)) {
    // More rows of MCUs than an image has seek points.
    recipe.width = draw(random, 1, 10);
    recipe.height = draw(random, 900, 3000);
  }
  recipe.components = chance(random, 5) ? 1 : 3;
  const auto &factors = kFactors[below(random, std::size(kFactors))];
  for (int i = 0; i < 3; ++i) recipe.h[i] = recipe.v[i] = 1;
  recipe.h[0] = factors[0];
  recipe.v[0] = factors[1];
  if (chance(random, 12)) {
    recipe.h[1] = draw(random, 1, 2);
    recipe.v[2] = draw(random, 1, 2);
  }
  recipe.kind = draw(random, 0, 5);
  const int most = chance(random, 20) ? 65535 : recipe.kind == 0 || chance(random, 4) ? 255 : 12;
  for (auto &table : recipe.quant) {
    for (unsigned int &step : table) step = static_cast<unsigned int>(draw(random, 1, most));
  }
  return recipe;
}

void write_coefficients(const Recipe &recipe, jpeg_compress_struct *info) {
  Random &random = *recipe.random;
  info->image_width = static_cast<JDIMENSION>(recipe.width);
  info->image_height = static_cast<JDIMENSION>(recipe.height);
  info->input_components = recipe.components;
  info->in_color_space = recipe.components == 1 ? JCS_GRAYSCALE : JCS_YCbCr;
  jpeg_set_defaults(info);
  jpeg_add_quant_table(info, 0, recipe.quant[0], 100, FALSE);
  jpeg_add_quant_table(info, 1, recipe.quant[1], 100, FALSE);
  choose_coding(random, info);
  int most_h = 1, most_v = 1;
  for (int i = 0; i < recipe.components; ++i) {
    info->comp_info[i].h_samp_factor = recipe.h[i];
    info->comp_info[i].v_samp_factor = recipe.v[i];
    most_h = std::max(most_h, recipe.h[i]);
    most_v = std::max(most_v, recipe.v[i]);
  }
  jvirt_barray_ptr arrays[3];
  int rows[3], columns[3];
  for (int i = 0; i < recipe.components; ++i) {
    columns[i] = (recipe.width + 8 * most_h - 1) / (8 * most_h) * recipe.h[i];
    rows[i] = (recipe.height + 8 * most_v - 1) / (8 * most_v) * recipe.v[i];
    arrays[i] = info->mem->request_virt_barray(reinterpret_cast<j_common_ptr>(info), JPOOL_IMAGE, TRUE,
                                               static_cast<JDIMENSION>(columns[i]), static_cast<JDIMENSION>(rows[i]),
                                               static_cast<JDIMENSION>(recipe.v[i]));
  }
  jpeg_write_coefficients(info, arrays);
  for (int i = 0; i < recipe.components; ++i) {
    const UINT16 *quant = info->quant_tbl_ptrs[info->comp_info[i].quant_tbl_no]->quantval;
    for (int y = 0; y < rows[i]; ++y) {
      JBLOCKARRAY row = info->mem->access_virt_barray(reinterpret_cast<j_common_ptr>(info), arrays[i],
                                                      static_cast<JDIMENSION>(y), 1, TRUE);
      for (int x = 0; x < columns[i]; ++x) fill_block(random, recipe.kind, quant, row[0][x]);
    }
  }
  jpeg_finish_compress(info);
}

// Room for the largest image that is written here, so that libjpeg never takes memory for it, which an error would lose.
Bytes &room() {
  static Bytes bytes(size_t{4} << 20);
  return bytes;
}

// Runs a writer, which writes to room(). Returns the size of what it wrote; 0 where libjpeg refused.
template <typename Write>
size_t compress(const Write &write) {
  jpeg_compress_struct info = {};
  ErrorManager errors = {};
  info.err = silent_errors(&errors);
  if (setjmp(errors.escape) != 0) {
    jpeg_destroy_compress(&info);
    return 0;
  }
  unsigned char *memory = room().data();
  unsigned long size = room().size();
  jpeg_create_compress(&info);
  jpeg_mem_dest(&info, &memory, &size);
  write(&info);
  jpeg_destroy_compress(&info);
  return size;
}

size_t recode(const Bytes &jpeg, Random &random) {
  jpeg_decompress_struct info = {};
  ErrorManager errors = {};
  info.err = silent_errors(&errors);
  if (setjmp(errors.escape) != 0) {
    jpeg_destroy_decompress(&info);
    return 0;
  }
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, jpeg.data(), static_cast<unsigned long>(jpeg.size()));
  jpeg_read_header(&info, TRUE);
  size_t size = 0;
  if (static_cast<uint64_t>(info.image_width) * info.image_height <= 1 << 16) {
    jvirt_barray_ptr *arrays = jpeg_read_coefficients(&info);
    size = compress([&](jpeg_compress_struct *writer) {
      jpeg_copy_critical_parameters(&info, writer);
      choose_coding(random, writer);
      jpeg_write_coefficients(writer, arrays);
      jpeg_finish_compress(writer);
    });
  }
  jpeg_destroy_decompress(&info);
  return size;
}

Bytes beginning_of_room(size_t size) { return Bytes(room().begin(), room().begin() + static_cast<ptrdiff_t>(size)); }

}  // namespace

Bytes make_jpeg(Random &random) {
  const Recipe recipe = draw_recipe(random);
  return beginning_of_room(compress([&](jpeg_compress_struct *info) { write_coefficients(recipe, info); }));
}

Bytes recode_jpeg(const Bytes &jpeg, Random &random) { return beginning_of_room(recode(jpeg, random)); }

}  // namespace fuzz
