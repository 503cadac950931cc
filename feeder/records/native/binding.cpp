// feeder.records._frames; its typed surface is in _frames.pyi.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "crc32c.h"
#include "frames.h"

namespace nb = nanobind;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::shape<-1>, nb::c_contig, nb::device::cpu>;

constexpr size_t kColumns = sizeof(feeder::IndexRow) / sizeof(int64_t);
static_assert(sizeof(feeder::IndexRow) == kColumns * sizeof(int64_t));

using Rows = nb::ndarray<int64_t, nb::shape<-1, kColumns>, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char *message) {
  if (!holds) throw std::invalid_argument(message);
}

nb::tuple scan(const Bytes &data, size_t start, size_t stop, int64_t offset, const nb::bytes &image,
               const nb::bytes &label, int64_t label_base, uint64_t max_record_bytes, const Rows &rows) {
  require(start <= stop && stop <= data.shape(0), "start and stop within data");
  require(max_record_bytes <= uint64_t{1} << 62, "max_record_bytes of at most 62 bits");
  const feeder::RecordKeys keys = {std::string(image.c_str(), image.size()), std::string(label.c_str(), label.size()),
                                   label_base};
  auto *out = reinterpret_cast<feeder::IndexRow *>(rows.data());
  feeder::Scanned scanned;
  {
    const nb::gil_scoped_release released;
    scanned = feeder::scan_frames(data.data() + start, stop - start, offset, keys, max_record_bytes, out,
                                  rows.shape(0));
  }
  return nb::make_tuple(scanned.rows, scanned.used, scanned.need);
}

uint32_t crc32c(const Bytes &data, const std::string &way) {
  for (const feeder::Crc32c *one : feeder::kCrc32c) {
    if (way == one->name && one->runs_here()) return (*one)(data.data(), data.shape(0));
  }
  throw std::invalid_argument("this machine has no way " + way);
}

nb::tuple ways() {
  nb::list names;
  for (const feeder::Crc32c *one : feeder::kCrc32c) {
    if (one->runs_here()) names.append(one->name);
  }
  return nb::tuple(names);
}

}  // namespace

NB_MODULE(_frames, module) {
  module.attr("CRC32C_WAYS") = ways();
  module.def("scan", &scan, nb::arg("data").noconvert(), nb::arg("start"), nb::arg("stop"), nb::arg("offset"),
             nb::arg("image"), nb::arg("label"), nb::arg("label_base"), nb::arg("max_record_bytes"),
             nb::arg("rows").noconvert());
  module.def("crc32c", &crc32c, nb::arg("data").noconvert(), nb::arg("way"));
}
