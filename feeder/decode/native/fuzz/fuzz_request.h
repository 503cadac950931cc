// What an input chooses of a request: its first half of the choices.
#pragma once

#include <algorithm>

#include "fuzz_input.h"
#include "jpeg_crop.h"

namespace fuzz {

// Small, so that a mutated header costs little time.
inline constexpr feeder_limits kLimits = {1 << 20, 1 << 18, 20, 2 << 20, 0};

// Sometimes outside of the image.
inline feeder_request choose_request(const Input &input, int width, int height) {
  const uint8_t *choices = input.choices;
  feeder_request request = {};
  request.data = input.image.data();
  request.size = input.image.size();
  request.x = choices[0] * (width + 1) / 256;
  request.y = choices[1] * (height + 1) / 256;
  request.width = 1 + choices[2] * std::max(1, width - request.x) / 256 + (choices[8] == 1 ? 1 : 0);
  request.height = 1 + choices[3] * std::max(1, height - request.y) / 256 + (choices[8] == 2 ? 1 : 0);
  request.out_width = 1 + choices[4] % 96;
  request.out_height = 1 + choices[5] % 96;
  request.reduction = 1 << (choices[6] % 8 < 4 ? 0 : choices[6] % 4);
  request.flip = choices[7] & 1;
  request.filter = (choices[7] & 2) != 0 ? FEEDER_BICUBIC : FEEDER_BILINEAR;
  request.antialias = (choices[7] & 12) != 0 ? 1 : 0;
  if ((choices[7] & 16) != 0) {
    request.output = FEEDER_YUV420;
    request.out_width += request.out_width % 2;
    request.out_height += request.out_height % 2;
  }
  return request;
}

inline size_t bytes_of_out(const feeder_request &request) {
  const size_t pixels = static_cast<size_t>(request.out_width) * static_cast<size_t>(request.out_height);
  return request.output == FEEDER_YUV420 ? pixels / 2 * 3 : pixels * 3;
}

}  // namespace fuzz
