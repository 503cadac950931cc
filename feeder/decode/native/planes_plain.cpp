// Planes in plain C++: what the other levels have to equal.

#include "planes.h"

#include <algorithm>
#include <cstring>

namespace feeder {
namespace {

// Keeps the low 16 bits, as 16-bit vectors do.
int32_t wrap(int32_t value) { return static_cast<int16_t>(static_cast<uint16_t>(value)); }

int32_t saturate(int32_t value) { return std::clamp(value, -0x8000, 0x7FFF); }

uint8_t sample(int32_t value) { return static_cast<uint8_t>(std::clamp(value, -128, 127) + 128); }

// One pass over 8 columns of values within int16: sums stay within int32, whatever the values are.
template <int shift>
void transform(const int32_t (*in)[8], int32_t (*out)[8]) {
  const int32_t half = 1 << (shift - 1);
  for (int x = 0; x < 8; ++x) {
    const int32_t sum = wrap(in[0][x] + in[4][x]) * (1 << kDctBits) + half;
    const int32_t difference = wrap(in[0][x] - in[4][x]) * (1 << kDctBits) + half;
    const int32_t turned26 = in[2][x] * kDct0_541 + in[6][x] * (kDct0_541 - kDct1_847);
    const int32_t turned62 = in[2][x] * (kDct0_541 + kDct0_765) + in[6][x] * kDct0_541;
    const int32_t even[4] = {sum + turned62, difference + turned26, difference - turned26, sum - turned62};

    const int32_t a = wrap(in[7][x] + in[3][x]), b = wrap(in[5][x] + in[1][x]);
    const int32_t turned_a = b * kDct1_175 + a * (kDct1_175 - kDct1_961);
    const int32_t turned_b = b * (kDct1_175 - kDct0_390) + a * kDct1_175;
    const int32_t odd[4] = {in[1][x] * (kDct1_501 - kDct0_899) - in[7][x] * kDct0_899 + turned_b,
                            in[3][x] * (kDct3_072 - kDct2_562) - in[5][x] * kDct2_562 + turned_a,
                            in[5][x] * (kDct2_053 - kDct2_562) - in[3][x] * kDct2_562 + turned_b,
                            in[7][x] * (kDct0_298 - kDct0_899) - in[1][x] * kDct0_899 + turned_a};
    for (int i = 0; i < 4; ++i) {
      out[i][x] = saturate((even[i] + odd[i]) >> shift);
      out[7 - i][x] = saturate((even[i] - odd[i]) >> shift);
    }
  }
}

}  // namespace

namespace plain {

void idct_islow(const int16_t *coefficients, const uint16_t *quant, uint8_t *out, ptrdiff_t stride) {
  int32_t in[8][8], between[8][8], turned[8][8], samples[8][8];
  for (int k = 0; k < 64; ++k) in[k / 8][k % 8] = wrap(coefficients[k] * quant[k]);
  if (std::all_of(coefficients + 8, coefficients + 64, [](int16_t value) { return value == 0; })) {
    // As the first pass but for values of more than 13 bits, which wrap: libjpeg-turbo has this short cut.
    for (auto &row : between) {
      for (int x = 0; x < 8; ++x) row[x] = wrap(in[0][x] * (1 << kDctBetweenBits));
    }
  } else {
    transform<kDctFirstShift>(in, between);
  }
  for (int k = 0; k < 64; ++k) turned[k % 8][k / 8] = between[k / 8][k % 8];
  transform<kDctSecondShift>(turned, samples);
  for (int y = 0; y < 8; ++y, out += stride) {
    for (int x = 0; x < 8; ++x) out[x] = sample(samples[x][y]);
  }
}

void idct_dc(int16_t dc, uint16_t quant, uint8_t *out, ptrdiff_t stride) {
  constexpr int kShift = kDctSecondShift - kDctBits;
  const int32_t value = wrap(wrap(dc * quant) * (1 << kDctBetweenBits));
  const int byte = sample((value + (1 << (kShift - 1))) >> kShift);
  for (int y = 0; y < 8; ++y, out += stride) std::memset(out, byte, 8);
}

}  // namespace plain

const Planes kPlainPlanes = {plain::idct_islow, plain::idct_dc};

}  // namespace feeder
