// The planes of a whole image as one run of bytes, for who keeps them: the facts, and behind them the samples.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg_crop.h"

namespace feeder {

size_t kept_bytes(const feeder_planes &planes);

// Writes kept_bytes().
void write_kept(const feeder_planes &planes, uint8_t *to);

// Points to the samples within data, which are never written to. False where these are no such bytes; whether the facts
// are those of an image is left to who uses them.
bool read_kept(const uint8_t *data, size_t size, feeder_planes *planes);

}  // namespace feeder
