// feeder.decode._kernel: buffers and arrays in, statuses out. Everything is checked before the GIL is released, once a
// call; the typed surface is in _kernel.pyi.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "jpeg_crop.h"
#include "kept_planes.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace {

using Windows = nb::ndarray<const int32_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<const bool, nb::shape<-1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::shape<-1>, nb::c_contig, nb::device::cpu>;
using Images = nb::ndarray<uint8_t, nb::c_contig, nb::device::cpu>;  // [n, H, W, 3], or [n, 3 H / 2, W] of YUV 4:2:0
using SeekPoints = nb::ndarray<uint8_t, nb::shape<-1, FEEDER_SEEK_BYTES>, nb::c_contig, nb::device::cpu>;
using Outcomes = nb::ndarray<uint8_t, nb::shape<-1>, nb::c_contig, nb::device::cpu>;
using Places = nb::ndarray<const int64_t, nb::shape<-1>, nb::c_contig, nb::device::cpu>;
using Layouts = nb::ndarray<const int32_t, nb::shape<-1, -1>, nb::c_contig, nb::device::cpu>;
using Sizes = nb::ndarray<int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

constexpr size_t kMaxSide = 1 << 20;
constexpr feeder_level kLevels[] = {FEEDER_PLAIN, FEEDER_SSE4, FEEDER_AVX2, FEEDER_AVX512, FEEDER_NEON};

// Facts of planes, in a row.
constexpr size_t kFacts = sizeof(feeder_layout) / sizeof(int32_t);
static_assert(sizeof(feeder_layout) == kFacts * sizeof(int32_t));

// The bytes of a sequence of buffers, held until this goes; made and destroyed with the GIL.
class Buffers {
 public:
  explicit Buffers(const nb::sequence &objects) {
    const size_t count = nb::len(objects);
    views_.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      Py_buffer view;
      const nb::object object = objects[i];
      if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE) != 0) {
        release();
        throw nb::python_error();
      }
      views_.push_back(view);
    }
  }
  Buffers(const Buffers &) = delete;
  Buffers &operator=(const Buffers &) = delete;
  ~Buffers() { release(); }

  size_t count() const { return views_.size(); }
  const uint8_t *data(size_t i) const { return static_cast<const uint8_t *>(views_[i].buf); }
  size_t size(size_t i) const { return static_cast<size_t>(views_[i].len); }

 private:
  void release() {
    for (Py_buffer &view : views_) PyBuffer_Release(&view);
    views_.clear();
  }

  std::vector<Py_buffer> views_;
};

void require(bool holds, const char *message) {
  if (!holds) throw std::invalid_argument(message);
}

// What the slots of `out` are.
struct Slots {
  size_t count, height, width, bytes;
  feeder_output output;

  explicit Slots(const Images &out) {
    const bool planar = out.ndim() == 3;
    require(planar || (out.ndim() == 4 && out.shape(3) == 3), "out must be [n, H, W, 3] or [n, 3 H / 2, W]");
    count = out.shape(0);
    width = out.shape(2);
    require(!planar || (out.shape(1) % 3 == 0 && width % 2 == 0), "slots of YUV 4:2:0 have even sides");
    height = planar ? out.shape(1) / 3 * 2 : out.shape(1);
    require(height >= 1 && height <= kMaxSide && width >= 1 && width <= kMaxSide, "slots of 1 to 2**20 pixels a side");
    bytes = out.shape(1) * width * (planar ? 1 : 3);
    output = planar ? FEEDER_YUV420 : FEEDER_RGB;
  }
};

class Kernel {
 public:
  Kernel(size_t threads, uint64_t max_bytes, uint64_t max_pixels, uint64_t max_scans, uint64_t max_scan_pixels,
         const std::string &level, bool libjpeg_only)
      : level_(find_level(level)) {
    limits_ = {max_bytes, max_pixels, max_scans, max_scan_pixels, libjpeg_only ? 1 : 0};
    require(threads >= 1, "threads must be at least 1");
    require(max_pixels <= uint64_t{1} << 32, "max_pixels must be at most 2**32");
    pool_.reset(new feeder::ThreadPool(threads, limits_, level_));
  }

  const char *level() const { return feeder_level_name(level_); }

  void sizes(const nb::sequence &images, const Sizes &sizes, const nb::ndarray<uint8_t, nb::shape<-1>> &statuses) {
    const Buffers buffers(images);
    require(sizes.shape(0) == buffers.count() && statuses.shape(0) == buffers.count(), "one size for each image");
    for (size_t i = 0; i < buffers.count(); ++i) {
      feeder_header header = {};
      const feeder_status status = feeder_read_header(buffers.data(i), buffers.size(i), &limits_, &header);
      sizes.data()[2 * i] = header.width;
      sizes.data()[2 * i + 1] = header.height;
      statuses.data()[i] = static_cast<uint8_t>(status);
    }
  }

  nb::list decode(const nb::sequence &images, const Windows &windows, const Flags &flips, const Images &out,
                  const std::string &resample, bool antialias, const Bytes &reductions,
                  const std::optional<SeekPoints> &seek, const std::optional<Outcomes> &outcomes,
                  const std::string &stop, const std::optional<Flags> &kept, const std::optional<Places> &places) {
    const Buffers buffers(images);
    require(seek.has_value() == outcomes.has_value(), "seek and outcomes, or neither");
    const feeder_stop last = find_stop(stop);
    std::vector<feeder_request> requests =
        aim(buffers.count(), windows, flips, out, find_filter(resample), antialias, reductions, places);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].data = buffers.data(i);
      requests[i].size = buffers.size(i);
      requests[i].stop = last;
    }
    std::vector<feeder_planes> stored(kept ? requests.size() : 0);
    if (kept) {
      require(kept->shape(0) == requests.size(), "one flag for each image");
      for (size_t i = 0; i < requests.size(); ++i) {
        if (!kept->data()[i]) continue;
        require(feeder::read_kept(buffers.data(i), buffers.size(i), &stored[i]), "planes that are none");
        requests[i].planes = &stored[i];
      }
    }
    if (seek) attach(*seek, *outcomes, &requests);
    return run(requests);
  }

  nb::list keep(const nb::sequence &images, const Bytes &reductions) {
    const Buffers buffers(images);
    const size_t count = buffers.count();
    require(reductions.shape(0) == count, "one reduction for each image");
    std::vector<Planes> planes(count);
    std::vector<feeder_request> requests(count);
    for (size_t i = 0; i < count; ++i) {
      const uint8_t reduction = reductions.data()[i];
      require(reduction == 1 || reduction == 2 || reduction == 4 || reduction == 8, "reductions must be 1, 2, 4 or 8");
      feeder_header header = {};
      feeder_read_header(buffers.data(i), buffers.size(i), &limits_, &header);  // or decoding says what is wrong
      requests[i].data = buffers.data(i);
      requests[i].size = buffers.size(i);
      requests[i].width = header.width;
      requests[i].height = header.height;
      requests[i].reduction = reduction;
      requests[i].keep = &planes[i].content;
    }
    const nb::list outcomes = run(requests, true);
    nb::list kept;
    for (size_t i = 0; i < count; ++i) {
      if (!outcomes[i].is_none()) {
        kept.append(nb::none());
        continue;
      }
      const feeder_planes &content = planes[i].content;
      nb::object bytes =
          nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(feeder::kept_bytes(content))));
      if (!bytes.is_valid()) throw nb::python_error();
      auto *to = reinterpret_cast<uint8_t *>(PyBytes_AS_STRING(bytes.ptr()));
      {
        const nb::gil_scoped_release released;  // nobody else has seen the object yet
        feeder::write_kept(content, to);
      }
      kept.append(bytes);
    }
    return kept;
  }

  nb::tuple planes(const nb::object &image, const std::optional<std::array<int32_t, 4>> &window, int reduction,
                   const std::optional<SeekPoints> &seek) {
    require(reduction == 1 || reduction == 2 || reduction == 4 || reduction == 8, "reduction must be 1, 2, 4 or 8");
    const Buffers buffers(nb::borrow<nb::sequence>(nb::make_tuple(image)));
    feeder_header header = {};
    feeder_read_header(buffers.data(0), buffers.size(0), &limits_, &header);  // or decoding says what is wrong
    const auto cut = window.value_or(std::array<int32_t, 4>{0, 0, header.width, header.height});
    require(cut[0] >= 0 && cut[1] >= 0 && cut[2] >= (window ? 1 : 0) && cut[3] >= (window ? 1 : 0),
            "the window must not be empty");
    feeder_planes kept = {};
    uint8_t outcome_of_seek = 0;
    std::vector<feeder_request> requests(1);
    requests[0].data = buffers.data(0);
    requests[0].size = buffers.size(0);
    requests[0].x = cut[0];
    requests[0].y = cut[1];
    requests[0].width = cut[2];
    requests[0].height = cut[3];
    requests[0].reduction = reduction;
    requests[0].keep = &kept;
    if (seek) {
      require(seek->shape(0) == 1 && seek->shape(1) == FEEDER_SEEK_BYTES, "a row of SEEK_BYTES of seek points");
      requests[0].seek = seek->data();
      requests[0].seek_outcome = &outcome_of_seek;
    }
    const nb::list outcome = run(requests);
    const nb::capsule owner(kept.samples[0] != nullptr ? kept.samples[0] : std::malloc(1),
                            [](void *memory) noexcept { std::free(memory); });
    if (!outcome[0].is_none()) {
      throw nb::value_error(nb::str("status and reason {}").format(outcome[0]).c_str());
    }
    nb::list arrays;
    for (int i = 0; i < kept.layout.components; ++i) {
      const auto &plane = kept.layout.plane[i];
      arrays.append(nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>>(
          kept.samples[i],
          {static_cast<size_t>(plane.bottom - plane.top), static_cast<size_t>(plane.right - plane.left)}, owner));
    }
    auto *facts = new int32_t[kFacts];
    const nb::capsule facts_owner(facts, [](void *memory) noexcept { delete[] static_cast<int32_t *>(memory); });
    std::memcpy(facts, &kept.layout, sizeof kept.layout);
    return nb::make_tuple(arrays, nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>(facts, {kFacts}, facts_owner));
  }

  nb::list resample(const nb::sequence &planes, const Layouts &layouts, const Windows &windows, const Flags &flips,
                    const Images &out, const std::string &resample, bool antialias, const Bytes &reductions) {
    const Buffers buffers(planes);
    require(layouts.shape(1) == kFacts, "a row of facts for each image");
    const size_t count = layouts.shape(0);
    std::vector<feeder_planes> stored(count);
    std::vector<feeder_request> requests =
        aim(count, windows, flips, out, find_filter(resample), antialias, reductions, std::nullopt);
    size_t next = 0;
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(&stored[i].layout, layouts.data() + i * kFacts, sizeof stored[i].layout);
      const int components = stored[i].layout.components;
      require(components == 1 || components == 3, "images of 1 or 3 planes");
      for (int k = 0; k < components; ++k, ++next) {
        const auto &plane = stored[i].layout.plane[k];
        require(next < buffers.count() && plane.left >= 0 && plane.left < plane.right && plane.top >= 0 &&
                    plane.top < plane.bottom &&
                    buffers.size(next) == static_cast<size_t>(plane.right - plane.left) *
                                              static_cast<size_t>(plane.bottom - plane.top),
                "a plane of the size of its region for each component");
        // Never written to.
        stored[i].samples[k] = const_cast<uint8_t *>(buffers.data(next));
      }
      requests[i].planes = &stored[i];
    }
    require(next == buffers.count(), "no more planes than components");
    return run(requests);
  }

  nb::list learn(const nb::sequence &images, const SeekPoints &seek, const Outcomes &outcomes) {
    const Buffers buffers(images);
    std::vector<feeder_request> requests(buffers.count());
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].data = buffers.data(i);
      requests[i].size = buffers.size(i);
      requests[i].stop = FEEDER_LEARN;
    }
    attach(seek, outcomes, &requests);
    return run(requests);
  }

  void close() {
    const nb::gil_scoped_release released;
    pool_->close();
  }

 private:
  // One request for each slot, without its bytes.
  static std::vector<feeder_request> aim(size_t count, const Windows &windows, const Flags &flips, const Images &out,
                                         feeder_filter filter, bool antialias, const Bytes &reductions,
                                         const std::optional<Places> &places) {
    const Slots slots(out);
    require(windows.shape(0) == count && flips.shape(0) == count && reductions.shape(0) == count &&
                (places ? places->shape(0) : slots.count) == count,
            "one window, flip, reduction and slot for each image");
    std::vector<feeder_request> requests(count);
    for (size_t i = 0; i < count; ++i) {
      const int32_t *window = windows.data() + 4 * i;
      const uint8_t reduction = reductions.data()[i];
      require(window[0] >= 0 && window[1] >= 0 && window[2] >= 1 && window[3] >= 1, "windows must not be empty");
      require(reduction == 1 || reduction == 2 || reduction == 4 || reduction == 8, "reductions must be 1, 2, 4 or 8");
      const int64_t slot = places ? places->data()[i] : static_cast<int64_t>(i);
      require(slot >= 0 && static_cast<uint64_t>(slot) < slots.count, "places within out");
      feeder_request &request = requests[i];
      request.x = window[0];
      request.y = window[1];
      request.width = window[2];
      request.height = window[3];
      request.reduction = reduction;
      request.flip = flips.data()[i] ? 1 : 0;
      request.filter = filter;
      request.antialias = antialias ? 1 : 0;
      request.output = slots.output;
      request.out = out.data() + static_cast<size_t>(slot) * slots.bytes;
      request.out_height = static_cast<int32_t>(slots.height);
      request.out_width = static_cast<int32_t>(slots.width);
    }
    return requests;
  }

  static void attach(const SeekPoints &seek, const Outcomes &outcomes, std::vector<feeder_request> *requests) {
    require(seek.shape(0) == requests->size() && outcomes.shape(0) == requests->size(),
            "one row of seek points and one outcome for each image");
    for (size_t i = 0; i < requests->size(); ++i) {
      (*requests)[i].seek = seek.data() + i * FEEDER_SEEK_BYTES;
      (*requests)[i].seek_outcome = outcomes.data() + i;
    }
  }

  // What a request keeps.
  struct Planes {
    Planes() = default;
    Planes(const Planes &) = delete;
    Planes &operator=(const Planes &) = delete;
    ~Planes() { std::free(content.samples[0]); }
    feeder_planes content = {};
  };

  // Carries out requests without the GIL: for each None, or its status and reason.
  nb::list run(const std::vector<feeder_request> &requests, bool patient = false) {
    std::vector<feeder::Outcome> outcomes(requests.size());
    feeder::Ran ran;
    {
      const nb::gil_scoped_release released;
      ran = pool_->run(requests.data(), outcomes.data(), requests.size(), patient);
    }
    if (ran == feeder::Ran::kClosed) throw std::runtime_error("closed");
    if (ran == feeder::Ran::kForked) throw std::runtime_error("forked");
    nb::list results;
    for (const feeder::Outcome &outcome : outcomes) {
      if (outcome.status == FEEDER_OK) {
        results.append(nb::none());
      } else {
        // libjpeg's own messages are ASCII; what a file made of them need not be.
        results.append(nb::make_tuple(static_cast<int>(outcome.status),
                                      nb::steal(PyUnicode_DecodeLatin1(
                                          outcome.reason, static_cast<Py_ssize_t>(std::strlen(outcome.reason)),
                                          nullptr))));
      }
    }
    return results;
  }

  static feeder_filter find_filter(const std::string &name) {
    if (name == "bilinear") return FEEDER_BILINEAR;
    if (name == "bicubic") return FEEDER_BICUBIC;
    if (name == "tf1_bicubic") return FEEDER_TF1_BICUBIC;
    throw std::invalid_argument("resample must be bilinear, bicubic or tf1_bicubic, got " + name);
  }

  static feeder_stop find_stop(const std::string &name) {
    if (name == "pixels") return FEEDER_PIXELS;
    if (name == "planes") return FEEDER_PLANES;
    if (name == "entropy") return FEEDER_ENTROPY;
    throw std::invalid_argument("stop must be pixels, planes or entropy, got " + name);
  }

  static feeder_level find_level(const std::string &name) {
    if (name == "best") return feeder_best_level();
    for (const feeder_level level : kLevels) {
      if (name == feeder_level_name(level) && feeder_has_level(level) != 0) return level;
    }
    throw std::invalid_argument("this machine has no level " + name);
  }

  feeder_limits limits_;
  feeder_level level_;
  std::unique_ptr<feeder::ThreadPool, feeder::ThreadPool::Delete> pool_;
};

nb::tuple levels() {
  nb::list names;
  for (const feeder_level level : kLevels) {
    if (feeder_has_level(level) != 0) names.append(feeder_level_name(level));
  }
  return nb::tuple(names);
}

// A bytes object that nobody else has seen yet, and may therefore still be written to. It is handed out only when no
// export is alive, so that a bytes object that Python knows never changes.
class MessageBuffer {
 public:
  explicit MessageBuffer(Py_ssize_t size) {
    if (size < 0) throw nb::value_error(("size must not be negative, got " + std::to_string(size)).c_str());
    content_ = nb::steal(PyBytes_FromStringAndSize(nullptr, size));
    if (!content_.is_valid()) throw nb::python_error();
  }

  nb::object finish() {
    if (!content_.is_valid()) throw nb::buffer_error("this message is finished already");
    if (exports_ != 0) throw nb::buffer_error("this message cannot be finished while a view of it is alive");
    return std::move(content_);
  }

  Py_ssize_t size() const { return content_.is_valid() ? PyBytes_GET_SIZE(content_.ptr()) : 0; }

  int get(PyObject *self, Py_buffer *view, int flags) noexcept {
    if (!content_.is_valid()) {
      view->obj = nullptr;
      PyErr_SetString(PyExc_BufferError, "this message is finished already");
      return -1;
    }
    const int result = PyBuffer_FillInfo(view, self, PyBytes_AS_STRING(content_.ptr()),
                                         PyBytes_GET_SIZE(content_.ptr()), 0, flags);
    if (result == 0) ++exports_;
    return result;
  }

  void release() noexcept { --exports_; }

 private:
  nb::object content_;
  Py_ssize_t exports_ = 0;  // guarded by the GIL
};

int get_buffer(PyObject *self, Py_buffer *view, int flags) noexcept {
  if (!nb::inst_ready(self)) {  // made by __new__ alone
    view->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, "this message has no size yet");
    return -1;
  }
  return nb::inst_ptr<MessageBuffer>(self)->get(self, view, flags);
}

void release_buffer(PyObject *self, Py_buffer *) noexcept { nb::inst_ptr<MessageBuffer>(self)->release(); }

PyType_Slot message_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void *>(get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void *>(release_buffer)},
    {0, nullptr},
};

}  // namespace

NB_MODULE(_kernel, module) {
  // A program that ends while a decoder is open is no leak worth a line on its stderr.
  nb::set_leak_warnings(false);
  module.attr("LEVELS") = levels();
  module.attr("SEEK_BYTES") = FEEDER_SEEK_BYTES;
  nb::class_<Kernel>(module, "Kernel")
      .def(nb::init<size_t, uint64_t, uint64_t, uint64_t, uint64_t, const std::string &, bool>(), nb::arg("threads"),
           nb::arg("max_bytes"), nb::arg("max_pixels"), nb::arg("max_scans"), nb::arg("max_scan_pixels"),
           nb::arg("level"), nb::arg("libjpeg_only"))
      .def_prop_ro("level", &Kernel::level)
      .def("sizes", &Kernel::sizes, nb::arg("images"), nb::arg("sizes").noconvert(), nb::arg("statuses").noconvert())
      .def("decode", &Kernel::decode, nb::arg("images"), nb::arg("windows").noconvert(), nb::arg("flips").noconvert(),
           nb::arg("out").noconvert(), nb::arg("resample"), nb::arg("antialias"), nb::arg("reductions").noconvert(),
           nb::arg("seek").noconvert() = nb::none(), nb::arg("outcomes").noconvert() = nb::none(),
           nb::arg("stop") = "pixels", nb::arg("kept").noconvert() = nb::none(),
           nb::arg("places").noconvert() = nb::none())
      .def("keep", &Kernel::keep, nb::arg("images"), nb::arg("reductions").noconvert())
      .def("planes", &Kernel::planes, nb::arg("image"), nb::arg("window") = nb::none(), nb::arg("reduction") = 1,
           nb::arg("seek").noconvert() = nb::none())
      .def("resample", &Kernel::resample, nb::arg("planes"), nb::arg("layouts").noconvert(),
           nb::arg("windows").noconvert(), nb::arg("flips").noconvert(), nb::arg("out").noconvert(),
           nb::arg("resample"), nb::arg("antialias"), nb::arg("reductions").noconvert())
      .def("learn", &Kernel::learn, nb::arg("images"), nb::arg("seek").noconvert(), nb::arg("outcomes").noconvert())
      .def("close", &Kernel::close);
  nb::class_<MessageBuffer>(module, "MessageBuffer", nb::type_slots(message_slots))
      .def(nb::init<Py_ssize_t>(), nb::arg("size"))
      .def("__len__", &MessageBuffer::size)
      .def("finish", &MessageBuffer::finish);
}
