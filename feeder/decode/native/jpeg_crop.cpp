// The plain baseline file goes through baseline.h, and all else, and what is damaged, through libjpeg-turbo around the
// resampler: header, scale, crop, skip, and rows on their way out.

#include "jpeg_crop.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <new>

#include <jerror.h>
#include <jpeglib.h>

#include "baseline.h"
#include "plane_store.h"
#include "resample.h"

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

// Columns and rows of the image at its scale that a window touches.
struct Cut {
  int left, top, right, bottom;
};

Cut cut_out(const feeder_request &request) {
  const int r = request.reduction;
  return {request.x / r, request.y / r, (request.x + request.width + r - 1) / r,
          (request.y + request.height + r - 1) / r};
}

feeder::Geometry geometry(const feeder_request &request, const Cut &cut) {
  const double r = request.reduction;  // a power of two: what follows is exact
  feeder::Geometry result = {};
  result.in_width = cut.right - cut.left;
  result.in_height = cut.bottom - cut.top;
  result.box_x = request.x / r - cut.left;
  result.box_y = request.y / r - cut.top;
  result.box_width = request.width / r;
  result.box_height = request.height / r;
  result.out_width = request.out_width;
  result.out_height = request.out_height;
  result.filter = request.filter;
  result.antialias = request.antialias != 0;
  result.flip = request.flip != 0;
  return result;
}

}  // namespace

struct feeder_decoder {
  feeder_decoder(const feeder_limits &bounds, const feeder::Level &level, const feeder::Planes &planes)
      : limits(bounds), resampler(level), planes(planes), baseline(planes) {}

  feeder_limits limits;
  feeder::Resampler resampler;
  const feeder::Planes &planes;
  feeder::PlaneStore store;
  feeder::Scratch chroma;
  feeder::BaselineDecoder baseline;
  ErrorManager errors = {};
  Source source = {};
  jpeg_decompress_struct info = {};
};

namespace {

// Makes pixels of the planes in the store and passes them to the resampler, row by row; false when memory is short.
bool emit_pixels(feeder_decoder *decoder, const feeder::Window &window, const feeder::Geometry &geometry,
                 uint8_t *out) {
  const feeder::PlaneStore &store = decoder->store;
  const feeder::Planes &planes = decoder->planes;
  const feeder::PlaneLayout &layout = store.layout();
  const feeder::PlaneLayout::Plane &plane = layout.plane[layout.components - 1];
  const feeder::PlaneRegion region = plane.region;
  const int width = window.right - window.left, samples = region.right - region.left;
  const ptrdiff_t stride = 2 * store.stride(layout.components - 1) + feeder::kRowPadding;
  auto *chroma = static_cast<uint8_t *>(decoder->chroma.reserve(static_cast<size_t>(2 * stride)));
  if (chroma == nullptr || !decoder->resampler.begin(geometry, 0, width, out)) return false;
  for (int y = window.top; y < window.bottom; ++y, decoder->resampler.push_row()) {
    uint8_t *to = decoder->resampler.next_row();
    if (layout.components == 1) {
      planes.gray_to_rgbx(store.row(0, y), width, to);
      continue;
    }
    const uint8_t *rows[3] = {store.row(0, y)};
    for (int i = 1; i < 3; ++i) {
      uint8_t *row = chroma + (i - 1) * stride;
      const uint8_t *near_row = store.row(i, y / plane.down);
      const uint8_t *far_row = near_row;
      if (plane.down == 2) far_row = store.row(i, std::clamp(y / 2 + (y % 2 == 0 ? -1 : 1), 0, plane.height - 1));
      if (plane.down == 1 && plane.across == 1) row = const_cast<uint8_t *>(near_row);
      if (plane.down == 1 && plane.across == 2) planes.upsample_h2v1(near_row, samples, row);
      if (plane.down == 2 && plane.across == 1) planes.upsample_h1v2(near_row, far_row, samples, row, y % 2);
      if (plane.down == 2 && plane.across == 2) planes.upsample_h2v2(near_row, far_row, samples, row);
      rows[i] = row + window.left - region.left * plane.across;
    }
    planes.ycc_to_rgbx(rows[0], rows[1], rows[2], width, to);
  }
  return true;
}

// What to say of rows that were read without a warning: arithmetic coding gives none when its data ends too early.
feeder_status verdict(feeder_decoder *decoder) {
  if (!decoder->source.exhausted || !decoder->info.arith_code) return FEEDER_OK;
  std::snprintf(decoder->errors.reason, FEEDER_REASON_BYTES, "ends before its last row");
  return FEEDER_DAMAGED;
}

// Decodes the rows that the request needs and no more. Leaves by longjmp on an error of libjpeg.
feeder_status decode_rows(feeder_decoder *decoder, const feeder_request &request, const feeder_header &header) {
  jpeg_decompress_struct &info = decoder->info;
  decoder->errors.strict = false;  // odd but harmless markers before the scan
  jpeg_read_header(&info, TRUE);
  decoder->errors.strict = true;
  if (info.image_width != static_cast<JDIMENSION>(header.width) ||
      info.image_height != static_cast<JDIMENSION>(header.height)) {
    std::snprintf(decoder->errors.reason, FEEDER_REASON_BYTES, "two sizes in one header");
    return FEEDER_DAMAGED;
  }
  if (info.num_components == 3 && info.jpeg_color_space != JCS_YCbCr && info.jpeg_color_space != JCS_RGB) {
    return FEEDER_OTHER;
  }
  info.out_color_space = JCS_EXT_RGBX;
  info.scale_num = 1;
  // Whether all of it is sound shows at any scale.
  info.scale_denom = request.stop == FEEDER_LEARN ? 8 : static_cast<unsigned int>(request.reduction);
  info.dct_method = JDCT_ISLOW;
  info.do_fancy_upsampling = TRUE;
  jpeg_start_decompress(&info);
  if (decoder->source.exhausted && !header.one_scan && lacks_scans(info)) {
    std::snprintf(decoder->errors.reason, FEEDER_REASON_BYTES, "ends before its last scan");
    return FEEDER_DAMAGED;
  }

  if (request.stop == FEEDER_LEARN) {
    JSAMPARRAY row =
        info.mem->alloc_sarray(reinterpret_cast<j_common_ptr>(&info), JPOOL_IMAGE, 4 * info.output_width, 1);
    while (info.output_scanline < info.output_height) jpeg_read_scanlines(&info, row, 1);
    return verdict(decoder);
  }
  const Cut cut = cut_out(request);
  if (cut.right > static_cast<int>(info.output_width) || cut.bottom > static_cast<int>(info.output_height)) {
    return FEEDER_OUTSIDE;
  }
  int margin = cut.left;
  if (header.one_scan) {
    // Smooth upsampling of chroma looks one sample to each side, and takes the edge of what is decoded for the edge
    // of the image. Two samples more on both sides, and the columns that count are those of a full decode.
    const int more = 2 * info.max_h_samp_factor;
    const int left = std::max(0, cut.left - more);
    const int right = std::min(static_cast<int>(info.output_width), cut.right + more);
    auto offset = static_cast<JDIMENSION>(left);
    auto width = static_cast<JDIMENSION>(right - left);
    jpeg_crop_scanline(&info, &offset, &width);
    margin = cut.left - static_cast<int>(offset);
  }
  if (!decoder->resampler.begin(geometry(request, cut), margin, static_cast<int>(info.output_width), request.out)) {
    return FEEDER_NO_MEMORY;
  }
  if (header.one_scan) {
    // From the first row, libjpeg-turbo skips exactly and sets up the context rows of smooth upsampling by itself.
    if (cut.top > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(cut.top));
  } else {
    // Smoothing of coefficients and buffered scans don't go with skipping: read and drop.
    while (info.output_scanline < static_cast<JDIMENSION>(cut.top)) {
      JSAMPROW row = decoder->resampler.next_row();
      jpeg_read_scanlines(&info, &row, 1);
    }
  }
  for (int y = cut.top; y < cut.bottom; ++y) {
    JSAMPROW row = decoder->resampler.next_row();
    jpeg_read_scanlines(&info, &row, 1);
    decoder->resampler.push_row();
  }
  return verdict(decoder);
}

// Carries out a request without libjpeg, where that is possible.
feeder::Baseline decode_baseline(feeder_decoder *decoder, const feeder_request &request, const feeder_header &header) {
  const feeder::Window window = {request.x, request.y, request.x + request.width, request.y + request.height};
  feeder::Seek seek = {request.seek, false, false, false};
  feeder::PlaneSink *sink = request.stop == FEEDER_ENTROPY ? nullptr : &decoder->store;
  feeder::Baseline result =
      request.stop == FEEDER_LEARN
          ? decoder->baseline.learn(request.data, request.size, &seek)
          : decoder->baseline.decode(request.data, request.size, header, window, sink, &seek);
  if (request.seek_outcome != nullptr) {
    *request.seek_outcome = static_cast<uint8_t>((seek.used ? FEEDER_SEEK_USED : 0) | (seek.grew ? FEEDER_SEEK_GREW : 0) |
                                                 (seek.refused ? FEEDER_SEEK_REFUSED : 0));
  }
  if (request.stop != FEEDER_PIXELS || result != feeder::Baseline::kDone) return result;
  const feeder::PlaneLayout::Plane &last = decoder->store.layout().plane[2];
  if (last.across == 2 && last.width <= 2) return feeder::Baseline::kNotMine;
  return emit_pixels(decoder, window, geometry(request, cut_out(request)), request.out) ? feeder::Baseline::kDone
                                                                                       : feeder::Baseline::kNoMemory;
}

feeder_status decode_by_libjpeg(feeder_decoder *decoder, const feeder_request &request, const feeder_header &header,
                                char *reason) {
  // A new decompressor each time, for about 2 us: one that is used again keeps the tables of the file before, and a
  // file that lacks its own would decode with them.
  jpeg_decompress_struct &info = decoder->info;
  std::memset(&info, 0, sizeof info);
  decoder->errors.reason = reason;
  info.err = jpeg_std_error(&decoder->errors.base);
  decoder->errors.base.error_exit = fail;
  decoder->errors.base.emit_message = emit_message;
  decoder->errors.base.output_message = output_message;
  feeder_status status;
  if (setjmp(decoder->errors.escape) == 0) {
    jpeg_create_decompress(&info);
    // Coefficients of a progressive file take 6 bytes a pixel at 4:4:4; virtual arrays beyond this are an error.
    info.mem->max_memory_to_use = static_cast<long>(8 * decoder->limits.max_pixels);
    decoder->source = {};
    decoder->source.base.next_input_byte = request.data;
    decoder->source.base.bytes_in_buffer = request.size;
    decoder->source.base.init_source = do_nothing;
    decoder->source.base.fill_input_buffer = fill_input;
    decoder->source.base.skip_input_data = skip_input;
    decoder->source.base.resync_to_restart = jpeg_resync_to_restart;
    decoder->source.base.term_source = do_nothing;
    info.src = &decoder->source.base;
    status = decode_rows(decoder, request, header);
  } else {
    status = decoder->errors.base.msg_code == JERR_OUT_OF_MEMORY ? FEEDER_NO_MEMORY : FEEDER_DAMAGED;
  }
  jpeg_destroy_decompress(&info);
  return status;
}

}  // namespace

extern "C" {

feeder_level feeder_best_level(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) return FEEDER_AVX2;
  if (__builtin_cpu_supports("sse4.1")) return FEEDER_SSE4;
#endif
  return FEEDER_PLAIN;
}

const char *feeder_level_name(feeder_level level) {
  return level == FEEDER_AVX2 ? "avx2" : level == FEEDER_SSE4 ? "sse4" : "plain";
}

feeder_decoder *feeder_decoder_new(const feeder_limits *limits, feeder_level level) {
  if (level > feeder_best_level()) return nullptr;
  const feeder::Level *loops = &feeder::kPlainLevel;
  const feeder::Planes *planes = &feeder::kPlainPlanes;
#if defined(__x86_64__)
  if (level == FEEDER_SSE4) {
    loops = &feeder::kSse4Level;
    planes = &feeder::kSse4Planes;
  }
  if (level == FEEDER_AVX2) {
    loops = &feeder::kAvx2Level;
    planes = &feeder::kAvx2Planes;
  }
#endif
  return new (std::nothrow) feeder_decoder(*limits, *loops, *planes);
}

void feeder_decoder_free(feeder_decoder *decoder) { delete decoder; }

feeder_status feeder_decode(feeder_decoder *decoder, const feeder_request *request, char *reason) {
  reason[0] = '\0';
  if (request->seek_outcome != nullptr) *request->seek_outcome = 0;
  feeder_header header;
  const feeder_status readable = feeder_read_header(request->data, request->size, &decoder->limits, &header);
  if (readable != FEEDER_OK) return readable;
  const bool all = request->stop == FEEDER_LEARN;
  if (!all && (request->x > header.width - request->width || request->y > header.height - request->height)) {
    return FEEDER_OUTSIDE;
  }
  if (header.one_scan && (all || request->reduction == 1) && !decoder->limits.libjpeg_only) {
    const feeder::Baseline result = decode_baseline(decoder, *request, header);
    if (result == feeder::Baseline::kDone) return FEEDER_OK;
    if (result == feeder::Baseline::kNoMemory) return FEEDER_NO_MEMORY;
  }
  return decode_by_libjpeg(decoder, *request, header, reason);
}

}  // extern "C"
