#include "kept_planes.h"

#include <cstring>

namespace feeder {
namespace {

constexpr int kMaxSide = 65535;

size_t samples_of(const feeder_layout &layout, int component) {
  const auto &plane = layout.plane[component];
  return static_cast<size_t>(plane.right - plane.left) * static_cast<size_t>(plane.bottom - plane.top);
}

bool plausible(const feeder_layout &layout) {
  if (layout.components != 1 && layout.components != 3) return false;
  for (int i = 0; i < layout.components; ++i) {
    const auto &plane = layout.plane[i];
    if (plane.left < 0 || plane.left >= plane.right || plane.right > kMaxSide) return false;
    if (plane.top < 0 || plane.top >= plane.bottom || plane.bottom > kMaxSide) return false;
  }
  return true;
}

}  // namespace

size_t kept_bytes(const feeder_planes &planes) {
  size_t bytes = sizeof planes.layout;
  for (int i = 0; i < planes.layout.components; ++i) bytes += samples_of(planes.layout, i);
  return bytes;
}

void write_kept(const feeder_planes &planes, uint8_t *to) {
  std::memcpy(to, &planes.layout, sizeof planes.layout);
  to += sizeof planes.layout;
  for (int i = 0; i < planes.layout.components; ++i) {
    std::memcpy(to, planes.samples[i], samples_of(planes.layout, i));
    to += samples_of(planes.layout, i);
  }
}

bool read_kept(const uint8_t *data, size_t size, feeder_planes *planes) {
  if (size < sizeof planes->layout) return false;
  std::memcpy(&planes->layout, data, sizeof planes->layout);
  if (!plausible(planes->layout) || kept_bytes(*planes) != size) return false;
  data += sizeof planes->layout;
  for (int i = 0; i < planes->layout.components; ++i) {
    planes->samples[i] = const_cast<uint8_t *>(data);
    data += samples_of(planes->layout, i);
  }
  return true;
}

}  // namespace feeder
