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

class Scanner {
 public:
  Scanner(const std::string &image, const std::string &label, int64_t label_base, uint64_t max_record_bytes,
          const std::string &way)
      : settings_{image, label, label_base, max_record_bytes, find_way(way)} {
    require(label_base >= -0x7FFFFFFF && label_base <= 0x7FFFFFFF, "label_base of 32 bits");
    require(max_record_bytes <= uint64_t{1} << 62, "max_record_bytes of at most 62 bits");
  }

  nb::tuple scan(const Bytes &data, size_t start, size_t stop, int64_t offset, const Rows &rows) const {
    require(start <= stop && stop <= data.shape(0), "start and stop within data");
    feeder::Scanned scanned;
    {
      const nb::gil_scoped_release released;
      scanned = feeder::scan_frames(data.data() + start, stop - start, offset, settings_,
                                    reinterpret_cast<feeder::IndexRow *>(rows.data()), rows.shape(0));
    }
    return nb::make_tuple(scanned.rows, scanned.used, scanned.need);
  }

 private:
  static const feeder::Crc32c *find_way(const std::string &name) {
    if (name == "best") return &feeder::best_crc32c();
    for (const feeder::Crc32c *way : feeder::kCrc32c) {
      if (name == way->name && way->runs_here()) return way;
    }
    throw std::invalid_argument("this machine has no way " + name);
  }

  feeder::ScanSettings settings_;
};

uint32_t crc32c(const nb::handle data) {
  static const feeder::Crc32c &best = feeder::best_crc32c();
  Py_buffer view;
  if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const uint32_t crc = best(static_cast<const uint8_t *>(view.buf), static_cast<size_t>(view.len));
  PyBuffer_Release(&view);
  return crc;
}

nb::tuple ways() {
  nb::list names;
  for (const feeder::Crc32c *way : feeder::kCrc32c) {
    if (way->runs_here()) names.append(way->name);
  }
  return nb::tuple(names);
}

}  // namespace

NB_MODULE(_frames, module) {
  module.attr("WAYS") = ways();
  module.def("crc32c", &crc32c, nb::arg("data"));
  nb::class_<Scanner>(module, "Scanner")
      .def(nb::init<const std::string &, const std::string &, int64_t, uint64_t, const std::string &>(),
           nb::arg("image"), nb::arg("label"), nb::arg("label_base"), nb::arg("max_record_bytes"),
           nb::arg("way") = "best")
      .def("scan", &Scanner::scan, nb::arg("data").noconvert(), nb::arg("start"), nb::arg("stop"), nb::arg("offset"),
           nb::arg("rows").noconvert());
}
