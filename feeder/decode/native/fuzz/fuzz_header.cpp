// The two readers of headers against libjpeg's: what they say of a file that libjpeg takes is what libjpeg says, and
// what read_scan takes, libjpeg takes without a warning, to the last table.

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <jerror.h>
#include <jpeglib.h>

#include "fuzz_input.h"
#include "jpeg_crop.h"
#include "scan.h"

namespace {

constexpr feeder_limits kLimits = {1 << 20, 1ULL << 40, 20, 1ULL << 50, 0};

struct ErrorManager {
  jpeg_error_mgr base;
  jmp_buf escape;
};

[[noreturn]] void fail(j_common_ptr info) { std::longjmp(reinterpret_cast<ErrorManager *>(info->err)->escape, 1); }
// A JFIF version that libjpeg doesn't know changes nothing.
void count_warning(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code != JWRN_JFIF_MAJOR) ++info->err->num_warnings;
}
void ignore(j_common_ptr) {}

// A header as libjpeg reads it.
class Libjpeg {
 public:
  Libjpeg() = default;
  Libjpeg(const Libjpeg &) = delete;
  Libjpeg &operator=(const Libjpeg &) = delete;
  ~Libjpeg() { jpeg_destroy_decompress(&info); }

  bool read(const uint8_t *data, size_t size) {
    info.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = fail;
    errors_.base.emit_message = count_warning;
    errors_.base.output_message = ignore;
    if (setjmp(errors_.escape) != 0) return false;
    jpeg_create_decompress(&info);
    jpeg_mem_src(&info, data, static_cast<unsigned long>(size));
    jpeg_read_header(&info, TRUE);
    return true;
  }

  jpeg_decompress_struct info = {};

 private:
  ErrorManager errors_ = {};
};

bool same_codes(const feeder::CodeLengths &codes, const JHUFF_TBL *table) {
  if (table == nullptr || !std::equal(codes.counts, codes.counts + 16, table->bits + 1)) return false;
  size_t symbols = 0;
  for (int i = 0; i < 16; ++i) symbols += codes.counts[i];
  return std::equal(codes.symbols, codes.symbols + symbols, table->huffval);
}

void compare_components(const feeder::Scan &scan, const jpeg_decompress_struct &info) {
  for (int i = 0; i < scan.components; ++i) {
    const feeder::ScanComponent &ours = scan.component[i];
    const jpeg_component_info &theirs = *info.cur_comp_info[i];
    if (theirs.component_index != i) fuzz::finding("components in another order");
    const JQUANT_TBL *quant = info.quant_tbl_ptrs[theirs.quant_tbl_no];
    if (quant == nullptr || !std::equal(ours.quant, ours.quant + feeder::kBlockSamples, quant->quantval)) {
      fuzz::finding("another quantisation table");
    }
    if (!same_codes(ours.dc, info.dc_huff_tbl_ptrs[theirs.dc_tbl_no])) fuzz::finding("another DC table");
    if (!same_codes(ours.ac, info.ac_huff_tbl_ptrs[theirs.ac_tbl_no])) fuzz::finding("another AC table");
    const bool luma = i == 0;
    if (scan.components == 3 && (theirs.h_samp_factor != (luma ? scan.h : 1) || theirs.v_samp_factor != (luma ? scan.v : 1))) {
      fuzz::finding("other sampling factors");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const fuzz::Input input(data, size);
  const fuzz::Bytes &image = input.image;
  feeder_header header = {};
  const feeder_status status = feeder_read_header(image.data(), image.size(), &kLimits, &header);
  feeder::Scan scan = {};
  const bool ours = feeder::read_scan(image.data(), image.size(), &scan);
  Libjpeg libjpeg;
  const bool theirs = libjpeg.read(image.data(), image.size());
  const jpeg_decompress_struct &info = libjpeg.info;

  if (status != FEEDER_OK && status != FEEDER_OTHER) fuzz::finding("not a status of read_header");
  if (status == FEEDER_OK && theirs) {
    if (header.width < 1 || header.height < 1) fuzz::finding("an empty image");
    if (header.components != info.num_components) fuzz::finding("another number of components");
  }
  if (!ours) return 0;
  if (!theirs) fuzz::finding("read_scan takes what libjpeg refuses");
  if (info.err->num_warnings != 0) fuzz::finding("read_scan takes what libjpeg warns of");
  if (status == FEEDER_OK && (header.width != scan.width || header.height != scan.height || header.one_scan != 1)) {
    fuzz::finding("the readers differ");
  }
  if (static_cast<JDIMENSION>(scan.width) != info.image_width ||
      static_cast<JDIMENSION>(scan.height) != info.image_height || scan.components != info.num_components) {
    fuzz::finding("another size");
  }
  if (info.progressive_mode || info.arith_code) fuzz::finding("another process");
  if (static_cast<unsigned int>(scan.restart_interval) != info.restart_interval) fuzz::finding("another interval");
  if (scan.components == 3 && info.jpeg_color_space != JCS_YCbCr) fuzz::finding("another colour space");
  if (scan.file != image.data() || scan.size != image.size() || scan.file + scan.start != info.src->next_input_byte) {
    fuzz::finding("another place of the data");
  }
  compare_components(scan, info);
  return 0;
}
