// The inverse DCT in vectors of any width; vectors_sse4.h says what X is.
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
    out[i] = X::template down32<shift>(X::add32(even[i], odd[i]));
    out[7 - i] = X::template down32<shift>(X::sub32(even[i], odd[i]));
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

}  // namespace feeder
