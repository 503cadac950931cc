#include "libjpeg_decoder.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <jerror.h>
#include <jpeglib.h>

namespace feeder {
namespace {

// Everything that libjpeg's callbacks need. The longjmp out of them passes frames of libjpeg and of this file only,
// none of which holds an object with a destructor.
struct ErrorManager {
  jpeg_error_mgr base;
  jmp_buf escape;
  char *reason;
  bool strict;  // a warning is an error
};

struct Source {
  jpeg_source_mgr base;
  bool exhausted;  // libjpeg asked for more bytes than there are
};

const JOCTET kEnd[2] = {0xFF, JPEG_EOI};

[[noreturn]] void fail(j_common_ptr info) {
  auto *errors = reinterpret_cast<ErrorManager *>(info->err);
  char text[JMSG_LENGTH_MAX];
  errors->base.format_message(info, text);
  std::snprintf(errors->reason, FEEDER_REASON_BYTES, "%s", text);
  std::longjmp(errors->escape, 1);
}

// level < 0 is a warning: libjpeg would go on with invented pixels.
void emit_message(j_common_ptr info, int level) {
  if (level < 0 && reinterpret_cast<ErrorManager *>(info->err)->strict) fail(info);
}

void output_message(j_common_ptr) {}

void do_nothing(j_decompress_ptr) {}

// At the end of the bytes libjpeg gets an end marker. Where it still needs data it then warns, and a warning is an
// error; where it only looks for the next marker the image is complete.
boolean fill_input(j_decompress_ptr info) {
  auto *source = reinterpret_cast<Source *>(info->src);
  source->exhausted = true;
  source->base.next_input_byte = kEnd;
  source->base.bytes_in_buffer = sizeof kEnd;
  return TRUE;
}

void skip_input(j_decompress_ptr info, long count) {
  jpeg_source_mgr *source = info->src;
  if (count <= 0) return;
  if (static_cast<unsigned long>(count) > source->bytes_in_buffer) {
    fill_input(info);
    return;
  }
  source->next_input_byte += count;
  source->bytes_in_buffer -= static_cast<size_t>(count);
}

// A progressive file that lost its last scans decodes without a warning, only blurred: complete is what had an end,
// or all bits of all coefficients.
bool lacks_scans(const jpeg_decompress_struct &info) {
  if (info.arith_code) return true;
  if (info.coef_bits == nullptr) return false;
  for (int component = 0; component < info.num_components; ++component) {
    for (int k = 0; k < DCTSIZE2; ++k) {
      if (info.coef_bits[component][k] != 0) return true;
    }
  }
  return false;
}

// libjpeg makes gray of a component that had no scan. It notes a component's quantization table at its first scan.
bool lacks_component(const jpeg_decompress_struct &info) {
  for (int component = 0; component < info.num_components; ++component) {
    if (info.comp_info[component].quant_table == nullptr) return true;
  }
  return false;
}

#if JPEG_LIB_VERSION >= 70  // libjpeg-turbo with the later of libjpeg's interfaces
int scaled_size(const jpeg_component_info &component) { return component.DCT_v_scaled_size; }
int scaled_size(const jpeg_decompress_struct &info) { return info.min_DCT_v_scaled_size; }
#else
int scaled_size(const jpeg_component_info &component) { return component.DCT_scaled_size; }
int scaled_size(const jpeg_decompress_struct &info) { return info.min_DCT_scaled_size; }
#endif

// False where a component has a broken number of pixels a sample.
bool lay_out(const jpeg_decompress_struct &info, PlaneLayout *layout) {
  layout->components = info.num_components;
  layout->ycc = info.jpeg_color_space == JCS_YCbCr;
  layout->width = static_cast<int>(info.output_width);
  layout->height = static_cast<int>(info.output_height);
  layout->smooth = scaled_size(info) > 1;
  for (int i = 0; i < info.num_components; ++i) {
    const jpeg_component_info &component = info.comp_info[i];
    const int across = info.max_h_samp_factor * scaled_size(info), down = info.max_v_samp_factor * scaled_size(info);
    const int h = component.h_samp_factor * scaled_size(component);
    const int v = component.v_samp_factor * scaled_size(component);
    if (across % h != 0 || down % v != 0) return false;
    layout->plane[i] = {static_cast<int>(component.downsampled_width), static_cast<int>(component.downsampled_height),
                        across / h, down / v, {}};
  }
  return true;
}

// Where libjpeg puts a row of MCUs.
struct RawRows {
  static constexpr int kMost = MAX_SAMP_FACTOR * DCTSIZE;
  JSAMPROW rows[kMaxPlanes][kMost];
  JSAMPARRAY planes[kMaxPlanes];
  int count[kMaxPlanes];  // of rows

  bool place(const jpeg_decompress_struct &info, Scratch *memory) {
    size_t strides[kMaxPlanes], bytes = kRowPadding;
    for (int i = 0; i < info.num_components; ++i) {
      const jpeg_component_info &component = info.comp_info[i];
      count[i] = component.v_samp_factor * scaled_size(component);
      strides[i] = static_cast<size_t>(component.width_in_blocks) * static_cast<size_t>(scaled_size(component));
      bytes += strides[i] * static_cast<size_t>(count[i]);
    }
    auto *at = static_cast<JSAMPROW>(memory->reserve(bytes));
    if (at == nullptr) return false;
    for (int i = 0; i < info.num_components; ++i) {
      planes[i] = rows[i];
      for (int y = 0; y < count[i]; ++y, at += strides[i]) rows[i][y] = at;
    }
    return true;
  }
};

// One decompression. It outlives the function that libjpeg's errors come back to.
struct Run {
  jpeg_decompress_struct info = {};
  ErrorManager errors = {};
  Source source = {};
  long most_memory = 0;  // bytes
};

// What to say of rows that were read without a warning. Of arithmetic coding nearly all damage shows only in what its
// decoder leaves of the data behind the last row, or in data that end too early, for which it gives no warning. Leaves by
// longjmp.
feeder_status verdict(Run *run) {
  jpeg_decompress_struct &info = run->info;
  if (!info.arith_code) return FEEDER_OK;
  if (info.output_scanline >= info.output_height) jpeg_finish_decompress(&info);
  if (!run->source.exhausted) return FEEDER_OK;
  std::snprintf(run->errors.reason, FEEDER_REASON_BYTES, "ends before its last row");
  return FEEDER_DAMAGED;
}

// Leaves by longjmp on an error of libjpeg.
feeder_status decode_rows(Run *run, const feeder_header &header, int reduction, const Window &window, Scratch *memory,
                          PlaneSink *sink) {
  jpeg_decompress_struct &info = run->info;
  ErrorManager *const errors = &run->errors;
  errors->strict = false;  // odd but harmless markers before the scan
  jpeg_read_header(&info, TRUE);
  errors->strict = true;
  if (info.image_width != static_cast<JDIMENSION>(header.width) ||
      info.image_height != static_cast<JDIMENSION>(header.height)) {
    std::snprintf(errors->reason, FEEDER_REASON_BYTES, "two sizes in one header");
    return FEEDER_DAMAGED;
  }
  if (info.num_components == 3 && info.jpeg_color_space != JCS_YCbCr && info.jpeg_color_space != JCS_RGB) {
    return FEEDER_OTHER;
  }
  info.raw_data_out = TRUE;
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned int>(reduction);
  info.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&info);
  if (run->source.exhausted && !header.one_scan && lacks_scans(info)) {
    std::snprintf(errors->reason, FEEDER_REASON_BYTES, "ends before its last scan");
    return FEEDER_DAMAGED;
  }
  if (lacks_component(info)) {
    std::snprintf(errors->reason, FEEDER_REASON_BYTES, "has no scan of one of its components");
    return FEEDER_DAMAGED;
  }

  PlaneLayout layout = {};
  if (!lay_out(info, &layout)) {
    std::snprintf(errors->reason, FEEDER_REASON_BYTES, "samples of broken numbers of pixels");
    return FEEDER_DAMAGED;
  }
  RawRows raw;
  const auto lines = static_cast<JDIMENSION>(info.max_v_samp_factor * scaled_size(info));
  if (sink == nullptr) {
    if (!raw.place(info, memory)) return FEEDER_NO_MEMORY;
    while (info.output_scanline < info.output_height) jpeg_read_raw_data(&info, raw.planes, lines);
    return verdict(run);
  }
  if (window.right > layout.width || window.bottom > layout.height) return FEEDER_OUTSIDE;
  set_regions(window, &layout);
  if (!raw.place(info, memory) || !sink->begin(layout)) return FEEDER_NO_MEMORY;

  const auto touched = [&](int component, int row) {
    const PlaneRegion &region = layout.plane[component].region;
    return row * raw.count[component] < region.bottom && (row + 1) * raw.count[component] > region.top;
  };
  const auto below = [&](int row) {
    for (int i = 0; i < layout.components; ++i) {
      if (row * raw.count[i] < layout.plane[i].region.bottom) return false;
    }
    return true;
  };
  // No more than DCTSIZE rows of the coarsest component at a time, however many blocks each has in an MCU.
  const int fewest = *std::min_element(raw.count, raw.count + layout.components);
  const int parts = (fewest + DCTSIZE - 1) / DCTSIZE;
  for (int row = 0; !below(row); ++row) {
    // What is not needed is decoded, but not transformed.
    for (int i = 0; i < layout.components; ++i) info.comp_info[i].component_needed = touched(i, row) ? TRUE : FALSE;
    jpeg_read_raw_data(&info, raw.planes, lines);
    for (int part = 0; part < parts; ++part) {
      for (int i = 0; i < layout.components; ++i) {
        const PlaneRegion &region = layout.plane[i].region;
        const int start = row * raw.count[i], rows = raw.count[i] / parts;
        const int first = start + part * rows;
        const int end = std::min(first + rows, region.bottom);
        for (int y = std::max(first, region.top); y < end; ++y) sink->push(i, raw.rows[i][y - start] + region.left);
      }
    }
  }
  return verdict(run);
}

feeder_status decode_guarded(Run *run, const feeder_header &header, int reduction, const Window &window,
                             Scratch *memory, PlaneSink *sink) {
  if (setjmp(run->errors.escape) != 0) {
    return run->errors.base.msg_code == JERR_OUT_OF_MEMORY ? FEEDER_NO_MEMORY : FEEDER_DAMAGED;
  }
  jpeg_create_decompress(&run->info);
  run->info.src = &run->source.base;
  run->info.mem->max_memory_to_use = run->most_memory;
  return decode_rows(run, header, reduction, window, memory, sink);
}

}  // namespace

feeder_status LibjpegDecoder::decode(const uint8_t *data, size_t size, const feeder_header &header, int reduction,
                                     const Window &window, PlaneSink *sink, char *reason) noexcept {
  // A new decompressor each time, for about 2 us: one that is used again keeps the tables of the file before, and a
  // file that lacks its own would decode with them.
  Run run;
  // Coefficients of a progressive file take 6 bytes a pixel at 4:4:4; virtual arrays beyond this are an error.
  run.most_memory = static_cast<long>(8 * max_pixels_);
  run.errors.reason = reason;
  run.info.err = jpeg_std_error(&run.errors.base);
  run.errors.base.error_exit = fail;
  run.errors.base.emit_message = emit_message;
  run.errors.base.output_message = output_message;
  run.source.base.next_input_byte = data;
  run.source.base.bytes_in_buffer = size;
  run.source.base.init_source = do_nothing;
  run.source.base.fill_input_buffer = fill_input;
  run.source.base.skip_input_data = skip_input;
  run.source.base.resync_to_restart = jpeg_resync_to_restart;
  run.source.base.term_source = do_nothing;
  const feeder_status status = decode_guarded(&run, header, reduction, window, &rows_, sink);
  jpeg_destroy_decompress(&run.info);
  return status;
}

}  // namespace feeder
