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

// For vectors of 8 words.
template <typename X>
void idct_islow(const int16_t *coefficients, const uint16_t *quant, uint8_t *out, ptrdiff_t stride) {
  using V = typename X::Vector;
  V row[8], lower_rows = X::load(coefficients + 8);
  for (int y = 2; y < 8; ++y) lower_rows = X::either(lower_rows, X::load(coefficients + 8 * y));
  for (int y = 0; y < 8; ++y) row[y] = X::mullo(X::load(coefficients + 8 * y), X::load(quant + 8 * y));
  if (X::all_zero(lower_rows)) {
    row[0] = X::template up16<kDctBetweenBits>(row[0]);
    for (int y = 1; y < 8; ++y) row[y] = row[0];
  } else {
    V left[8], right[8];
    transform<X, kDctFirstShift>(X::low16(row[0], row[4]), X::low16(row[2], row[6]), X::low16(row[1], row[7]),
                                 X::low16(row[5], row[3]), left);
    transform<X, kDctFirstShift>(X::high16(row[0], row[4]), X::high16(row[2], row[6]), X::high16(row[1], row[7]),
                                 X::high16(row[5], row[3]), right);
    for (int y = 0; y < 8; ++y) row[y] = X::pack32(left[y], right[y]);
  }
  const V order = X::bytes(0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 14, 15, 10, 11, 6, 7);
  for (int y = 0; y < 8; y += 4, out += 4 * stride) {
    // Transposes four rows of the pairs of columns 04, 26, 17 and 53.
    const V row0 = X::shuffle(row[y], order), row1 = X::shuffle(row[y + 1], order);
    const V row2 = X::shuffle(row[y + 2], order), row3 = X::shuffle(row[y + 3], order);
    const V upper04_26 = X::low32(row0, row1), upper17_53 = X::high32(row0, row1);
    const V lower04_26 = X::low32(row2, row3), lower17_53 = X::high32(row2, row3);
    V column[8], rows01, rows23;
    transform<X, kDctSecondShift>(X::low64(upper04_26, lower04_26), X::high64(upper04_26, lower04_26),
                                  X::low64(upper17_53, lower17_53), X::high64(upper17_53, lower17_53), column);
    to_rows<X>(column, &rows01, &rows23);
    X::store_halves(out, out + stride, rows01);
    X::store_halves(out + 2 * stride, out + 3 * stride, rows23);
  }
}

}  // namespace feeder
