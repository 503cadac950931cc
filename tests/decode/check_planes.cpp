// Holds every level of planes.h against libjpeg: JPEGs are made from coefficients, and each sample that libjpeg makes of
// them must be what our functions make of them. Prints what differs and exits 1.
//
//   check_planes [ROUNDS [RANDOM_SEED]]
//
// Coefficients of any size are held against libjpeg's vectors, so this needs a libjpeg-turbo that uses them.

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include <jpeglib.h>

#include "planes.h"

namespace {

using Random = std::mt19937;
using Bytes = std::vector<uint8_t>;

struct Named {
  const char *name;
  const feeder::Planes *planes;
};

std::vector<Named> levels() {
  std::vector<Named> found = {{"plain", &feeder::kPlainPlanes}};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("sse4.1")) found.push_back({"sse4", &feeder::kSse4Planes});
  if (__builtin_cpu_supports("avx2")) found.push_back({"avx2", &feeder::kAvx2Planes});
#elif defined(__aarch64__)
  found.push_back({"neon", &feeder::kNeonPlanes});
#endif
  return found;
}

int draw(Random &random, int low, int high) {  // closed
  return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
}

struct Component {
  int h, v;                   // sampling factors
  int width, height;          // samples that count
  int block_columns, block_rows;  // padded to whole MCUs
  std::vector<int16_t> coefficients;  // block by block
  uint16_t quant[64];
};

struct Image {
  const char *kind;
  int width, height;
  std::vector<Component> components;
};

enum class Kind { kNatural, kSparse, kFirstRow, kDcOnly, kLarge, kCount };
constexpr const char *kKinds[] = {"natural", "sparse", "first row", "DC only", "large"};

// What baseline coding can carry: DC within 2047 of the one before, AC within 1023.
void fill(Random &random, Kind kind, Component &component) {
  const bool large = kind == Kind::kLarge;
  const bool coarse = large || random() % 4 == 0;
  for (auto &step : component.quant) step = static_cast<uint16_t>(draw(random, 1, coarse ? 255 : 12));
  for (size_t at = 0; at < component.coefficients.size(); at += 64) {
    int16_t *block = component.coefficients.data() + at;
    const int bound = large ? 1023 : std::max(1, 1000 / component.quant[0]);
    block[0] = static_cast<int16_t>(draw(random, -bound, bound));
    if (kind == Kind::kDcOnly) continue;
    const int count = kind == Kind::kSparse ? draw(random, 0, 6) : 63;
    for (int i = 0; i < count; ++i) {
      const int k = kind == Kind::kFirstRow ? draw(random, 1, 7) : draw(random, 1, 63);
      const int most = large ? (random() % 8 == 0 ? 1023 : 40) : std::max(1, 600 / (k * component.quant[k]));
      block[k] = static_cast<int16_t>(draw(random, -most, most));
    }
  }
}

Image make(Random &random, Kind kind, int width, int height, int h, int v, bool gray) {
  Image image = {kKinds[static_cast<int>(kind)], width, height, {}};
  for (int i = 0; i < (gray ? 1 : 3); ++i) {
    Component component = {};
    component.h = i == 0 ? h : 1;
    component.v = i == 0 ? v : 1;
    component.width = (width * component.h + h - 1) / h;
    component.height = (height * component.v + v - 1) / v;
    component.block_columns = (width + 8 * h - 1) / (8 * h) * component.h;
    component.block_rows = (height + 8 * v - 1) / (8 * v) * component.v;
    component.coefficients.resize(static_cast<size_t>(component.block_columns * component.block_rows * 64));
    fill(random, kind, component);
    image.components.push_back(component);
  }
  return image;
}

struct ErrorManager {
  jpeg_error_mgr base;
  jmp_buf escape;
};

[[noreturn]] void fail(j_common_ptr info) {
  info->err->output_message(info);
  std::longjmp(reinterpret_cast<ErrorManager *>(info->err)->escape, 1);
}

Bytes encode(const Image &image) {
  jpeg_compress_struct info = {};
  ErrorManager errors = {};
  unsigned char *memory = nullptr;
  unsigned long size = 0;
  info.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = fail;
  if (setjmp(errors.escape) != 0) std::exit(2);
  jpeg_create_compress(&info);
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  const auto count = static_cast<int>(image.components.size());
  info.input_components = count;
  info.in_color_space = count == 1 ? JCS_GRAYSCALE : JCS_YCbCr;
  jpeg_set_defaults(&info);
  info.optimize_coding = TRUE;
  jvirt_barray_ptr arrays[3];
  for (int i = 0; i < count; ++i) {
    const Component &component = image.components[static_cast<size_t>(i)];
    unsigned int table[64];
    std::copy(component.quant, component.quant + 64, table);
    jpeg_add_quant_table(&info, i, table, 100, TRUE);
    info.comp_info[i].quant_tbl_no = i;
    info.comp_info[i].h_samp_factor = component.h;
    info.comp_info[i].v_samp_factor = component.v;
    arrays[i] = info.mem->request_virt_barray(
        reinterpret_cast<j_common_ptr>(&info), JPOOL_IMAGE, FALSE, static_cast<JDIMENSION>(component.block_columns),
        static_cast<JDIMENSION>(component.block_rows), static_cast<JDIMENSION>(component.v));
  }
  jpeg_write_coefficients(&info, arrays);
  for (int i = 0; i < count; ++i) {
    const Component &component = image.components[static_cast<size_t>(i)];
    const int16_t *from = component.coefficients.data();
    for (int y = 0; y < component.block_rows; ++y, from += 64 * component.block_columns) {
      JBLOCKARRAY row = info.mem->access_virt_barray(reinterpret_cast<j_common_ptr>(&info), arrays[i],
                                                     static_cast<JDIMENSION>(y), 1, TRUE);
      std::memcpy(row[0], from, sizeof(int16_t) * 64 * static_cast<size_t>(component.block_columns));
    }
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  Bytes result(memory, memory + size);
  std::free(memory);
  return result;
}

// The samples of each component, in rows as long as its blocks.
std::vector<Bytes> decode_by_libjpeg(const Bytes &jpeg, const Image &image) {
  jpeg_decompress_struct info = {};
  ErrorManager errors = {};
  std::vector<Bytes> samples;
  std::vector<std::vector<JSAMPROW>> rows;
  std::vector<JSAMPARRAY> planes;
  for (const Component &component : image.components) {
    samples.emplace_back(static_cast<size_t>(64 * component.block_columns * component.block_rows));
    rows.emplace_back(static_cast<size_t>(8 * component.v));
    planes.push_back(rows.back().data());
  }
  info.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = fail;
  if (setjmp(errors.escape) != 0) std::exit(2);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, jpeg.data(), jpeg.size());
  jpeg_read_header(&info, TRUE);
  info.raw_data_out = TRUE;
  info.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&info);
  for (int row = 0; info.output_scanline < info.output_height; ++row) {
    for (size_t i = 0; i < samples.size(); ++i) {
      const Component &component = image.components[i];
      for (int y = 0; y < 8 * component.v; ++y) {
        rows[i][static_cast<size_t>(y)] =
            samples[i].data() + 8 * component.block_columns * (row * 8 * component.v + y);
      }
    }
    jpeg_read_raw_data(&info, planes.data(), static_cast<JDIMENSION>(8 * image.components[0].v));
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  return samples;
}

bool only_dc(const int16_t *block) {
  return std::all_of(block + 1, block + 64, [](int16_t value) { return value == 0; });
}

Bytes samples_of(const feeder::Planes &planes, const Component &component) {
  const ptrdiff_t stride = 8 * component.block_columns;
  Bytes samples(static_cast<size_t>(stride * 8 * component.block_rows));
  const int16_t *block = component.coefficients.data();
  for (int y = 0; y < component.block_rows; ++y) {
    for (int x = 0; x < component.block_columns; ++x, block += 64) {
      uint8_t *out = samples.data() + 8 * y * stride + 8 * x;
      if (only_dc(block)) {
        planes.idct_dc(block[0], component.quant[0], out, stride);
        Bytes again(64);
        planes.idct_islow(block, component.quant, again.data(), 8);
        for (int i = 0; i < 64; ++i) {
          if (again[static_cast<size_t>(i)] != out[i / 8 * stride + i % 8]) std::abort();
        }
      } else {
        planes.idct_islow(block, component.quant, out, stride);
      }
    }
  }
  return samples;
}

bool check_image(const Image &image) {
  const std::vector<Bytes> expected = decode_by_libjpeg(encode(image), image);
  for (const Named &level : levels()) {
    for (size_t i = 0; i < expected.size(); ++i) {
      const Component &component = image.components[i];
      const Bytes found = samples_of(*level.planes, component);
      const int stride = 8 * component.block_columns;
      for (int y = 0; y < component.height; ++y) {
        for (int x = 0; x < component.width; ++x) {
          const auto at = static_cast<size_t>(y * stride + x);
          if (found[at] == expected[i][at]) continue;
          std::printf("%s: %dx%d, %s, luma %dx%d: sample (%d, %d) of component %zu is %d, libjpeg has %d\n", level.name,
                      image.width, image.height, image.kind, image.components[0].h, image.components[0].v, x, y, i,
                      found[at], expected[i][at]);
          return false;
        }
      }
    }
  }
  return true;
}

// All levels alike for what no file can hold.
bool check_levels(Random &random, int rounds) {
  const auto all = levels();
  for (int round = 0; round < 500 * rounds; ++round) {
    int16_t block[64];
    uint16_t quant[64];
    const int rows = draw(random, 1, 8);
    for (int k = 0; k < 64; ++k) {
      const bool extreme = random() % 4 == 0;
      block[k] = static_cast<int16_t>(k / 8 >= rows ? 0 : extreme ? (random() % 2 ? -32768 : 32767) : random());
      quant[k] = static_cast<uint16_t>(random() % 2 ? 1 : random());
    }
    Bytes expected(64), found(64);
    all[0].planes->idct_islow(block, quant, expected.data(), 8);
    for (const Named &level : all) {
      level.planes->idct_islow(block, quant, found.data(), 8);
      if (found == expected) continue;
      std::printf("%s: idct_islow differs from plain\n", level.name);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char **argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 1;
  Random random(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1U);
  constexpr int kSamplings[][2] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}};
  int images = 0;
  for (int round = 0; round < rounds; ++round) {
    for (int width = 1; width <= 80; ++width) {
      for (const auto &sampling : kSamplings) {
        const auto kind = static_cast<Kind>(random() % static_cast<unsigned>(Kind::kCount));
        const int height = draw(random, 1, 40);
        if (!check_image(make(random, kind, width, height, sampling[0], sampling[1], false))) return 1;
        ++images;
      }
      if (!check_image(make(random, static_cast<Kind>(width % static_cast<int>(Kind::kCount)), width,
                            draw(random, 1, 40), 1, 1, true))) {
        return 1;
      }
      ++images;
    }
  }
  if (!check_levels(random, rounds)) return 1;
  std::printf("%d images as libjpeg has them at", images);
  for (const Named &level : levels()) std::printf(" %s", level.name);
  std::printf("\n");
  return 0;
}
