// Planes in vectors of any width; `X` names the instructions: X::Vector holds X::kWords 16-bit words.
#pragma once

#include "planes.h"

namespace feeder {

// One pass of the inverse DCT over as many lanes as X has 32-bit words. A lane holds a pair of 16-bit inputs, the
// first one in its low half; out gets 8 sums a lane, scaled back.
template <typename X, int shift>
inline void transform(typename X::Vector in04, typename X::Vector in26, typename X::Vector in17,
                      typename X::Vector in53, typename X::Vector *out) {
  using V = typename X::Vector;
  const V half = X::words32(1 << (shift - 1));
  // The high half of a lane gets 0 + 4 or 0 - 4, the low half what has no weight.
  const V one = X::pairs(0, 1 << kDctBits);
  const V high0 = X::to_high(in04);
  const V sum = X::add32(X::madd(X::add16(high0, in04), one), half);
  const V difference = X::add32(X::madd(X::sub16(high0, in04), one), half);
  const V turned26 = X::madd(in26, X::pairs(kDct0_541, kDct0_541 - kDct1_847));
  const V turned62 = X::madd(in26, X::pairs(kDct0_541 + kDct0_765, kDct0_541));
  const V even[4] = {X::add32(sum, turned62), X::add32(difference, turned26), X::sub32(difference, turned26),
                     X::sub32(sum, turned62)};

  const V sums = X::add16(in17, in53);
  const V a = X::madd(sums, X::pairs(kDct1_175, kDct1_175 - kDct1_961));
  const V b = X::madd(sums, X::pairs(kDct1_175 - kDct0_390, kDct1_175));
  const V odd[4] = {X::add32(X::madd(in17, X::pairs(kDct1_501 - kDct0_899, -kDct0_899)), b),
                    X::add32(X::madd(in53, X::pairs(-kDct2_562, kDct3_072 - kDct2_562)), a),
                    X::add32(X::madd(in53, X::pairs(kDct2_053 - kDct2_562, -kDct2_562)), b),
                    X::add32(X::madd(in17, X::pairs(-kDct0_899, kDct0_298 - kDct0_899)), a)};
  for (int i = 0; i < 4; ++i) {
    out[i] = X::template shift32<shift>(X::add32(even[i], odd[i]));
    out[7 - i] = X::template shift32<shift>(X::sub32(even[i], odd[i]));
  }
}

// Four rows of samples in each 128-bit lane, from 8 columns of 32-bit words: two rows in each of the results.
template <typename X>
inline void to_rows(const typename X::Vector *columns, typename X::Vector *rows01, typename X::Vector *rows23) {
  using V = typename X::Vector;
  const V left = X::pack16(X::pack32(columns[0], columns[1]), X::pack32(columns[2], columns[3]));
  const V right = X::pack16(X::pack32(columns[4], columns[5]), X::pack32(columns[6], columns[7]));
  const V lift = X::words32(static_cast<int32_t>(0x80808080U));
  const V across = X::bytes(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const V a = X::shuffle(X::flip_bits(left, lift), across), b = X::shuffle(X::flip_bits(right, lift), across);
  *rows01 = X::low32(a, b);
  *rows23 = X::high32(a, b);
}

// Samples are widened to words; an even and an odd output share a word, which stores them in turn.

template <typename X>
void upsample_h2v1(const uint8_t *in, int width, uint8_t *out) {
  if (width < X::kWords + 2) {
    plain::upsample_h2v1(in, width, out);
    return;
  }
  out[0] = in[0];
  const int last = width - 1 - X::kWords;  // overlaps with the one before
  for (int from = 1; from < width - 1; from += X::kWords) {
    const int x = from < last ? from : last;
    const auto here = X::widen(in + x);
    const auto three = X::add16(here, X::add16(here, here));
    const auto even = X::add16(three, X::add16(X::widen(in + x - 1), X::words16(1)));
    const auto odd = X::add16(three, X::add16(X::widen(in + x + 1), X::words16(2)));
    X::store(out + 2 * x, X::weave(X::template shift16<2>(even), X::template shift16<2>(odd)));
  }
  out[1] = static_cast<uint8_t>((3 * in[0] + in[1] + 2) >> 2);
  out[2 * width - 2] = static_cast<uint8_t>((3 * in[width - 1] + in[width - 2] + 1) >> 2);
  out[2 * width - 1] = in[width - 1];
}

template <typename X>
void upsample_h2v2(const uint8_t *near_row, const uint8_t *far_row, int width, uint8_t *out) {
  if (width < X::kWords + 2) {
    plain::upsample_h2v2(near_row, far_row, width, out);
    return;
  }
  const auto sums = [=](int x) {
    const auto near = X::widen(near_row + x);
    return X::add16(X::add16(near, X::add16(near, near)), X::widen(far_row + x));
  };
  const int last = width - 1 - X::kWords;  // overlaps with the one before
  for (int from = 1; from < width - 1; from += X::kWords) {
    const int x = from < last ? from : last;
    const auto here = sums(x);
    const auto three = X::add16(here, X::add16(here, here));
    const auto even = X::add16(three, X::add16(sums(x - 1), X::words16(8)));
    const auto odd = X::add16(three, X::add16(sums(x + 1), X::words16(7)));
    X::store(out + 2 * x, X::weave(X::template shift16<4>(even), X::template shift16<4>(odd)));
  }
  const auto sum = [=](int x) { return 3 * near_row[x] + far_row[x]; };
  out[0] = static_cast<uint8_t>((4 * sum(0) + 8) >> 4);
  out[1] = static_cast<uint8_t>((3 * sum(0) + sum(1) + 7) >> 4);
  out[2 * width - 2] = static_cast<uint8_t>((3 * sum(width - 1) + sum(width - 2) + 8) >> 4);
  out[2 * width - 1] = static_cast<uint8_t>((4 * sum(width - 1) + 7) >> 4);
}

// What of a factor exceeds a whole number is multiplied in 16 bits: (2 * c * part >> 16) + 1 >> 1 is c * part rounded.
template <typename X>
void ycc_to_rgbx(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int width, uint8_t *out) {
  if (width < X::kWords) {
    plain::ycc_to_rgbx(y, cb, cr, width, out);
    return;
  }
  constexpr int kOne = 1 << 16;
  const int last = width - X::kWords;
  for (int from = 0; from < width; from += X::kWords) {
    const int x = from < last ? from : last;
    const auto luma = X::widen(y + x);
    const auto blue = X::sub16(X::widen(cb + x), X::words16(128));
    const auto red = X::sub16(X::widen(cr + x), X::words16(128));
    const auto blue2 = X::add16(blue, blue), red2 = X::add16(red, red);
    const auto round = [](auto value) { return X::template shift16<1>(X::add16(value, X::words16(1))); };
    const auto red_part = round(X::mulhi(red2, X::words16(kRedCr - kOne)));
    const auto blue_part = round(X::mulhi(blue2, X::words16(kBlueCb - 2 * kOne)));
    const auto green = [](auto chroma) {
      const auto sum = X::madd(chroma, X::pairs(-kGreenCb, kOne - kGreenCr));
      return X::template shift32<16>(X::add32(sum, X::words32(1 << 15)));
    };
    const auto green_part = X::pack32(green(X::low16(blue, red)), green(X::high16(blue, red)));
    const auto r = X::add16(luma, X::add16(red, red_part));
    const auto g = X::add16(luma, X::sub16(green_part, red));
    const auto b = X::add16(luma, X::add16(blue2, blue_part));
    const auto rb = X::pack_unsigned(r, b), gx = X::pack_unsigned(g, X::words16(255));
    const auto rg = X::low8(rb, gx), bx = X::high8(rb, gx);
    X::store_halves(out + 4 * x, X::low16(rg, bx), X::high16(rg, bx));
  }
}

template <typename X>
void gray_to_rgbx(const uint8_t *y, int width, uint8_t *out) {
  if (width < X::kWords) {
    plain::gray_to_rgbx(y, width, out);
    return;
  }
  const int last = width - X::kWords;
  for (int from = 0; from < width; from += X::kWords) {
    const int x = from < last ? from : last;
    const auto luma = X::widen(y + x);
    const auto rg = X::weave(luma, luma), bx = X::weave(luma, X::words16(255));
    X::store_halves(out + 4 * x, X::low16(rg, bx), X::high16(rg, bx));
  }
}

}  // namespace feeder
