// The inner loops of resampling in vectors of any width; vectors_sse4.h says what X is.
#pragma once

#include "resample_level.h"

namespace feeder {

// Runs the loop for as many taps where few have one of their own, else the one for 0.
template <template <typename, int> class Loop, typename X, typename... Arguments>
inline void with_taps(int taps, Arguments... arguments) {
  switch (taps) {
    case 1: return Loop<X, 1>::run(taps, arguments...);
    case 2: return Loop<X, 2>::run(taps, arguments...);
    case 3: return Loop<X, 3>::run(taps, arguments...);
    case 4: return Loop<X, 4>::run(taps, arguments...);
    case 5: return Loop<X, 5>::run(taps, arguments...);
    case 6: return Loop<X, 6>::run(taps, arguments...);
    default: return Loop<X, 0>::run(taps, arguments...);
  }
}

// Weighs samples into words in Q7, as many as X has bytes.
template <typename X>
struct Weighed {
  using Vector = typename X::Vector;
  Vector low, high;

  Weighed(const uint8_t *samples, Vector weight) {
    const Vector zero = X::words16(0);
    const Vector centred = X::flip_bits(X::load(samples), X::words32(static_cast<int32_t>(0x80808080U)));
    low = X::mulhrs(X::low8(zero, centred), weight);
    high = X::mulhrs(X::high8(zero, centred), weight);
  }
  void operator+=(const Weighed &other) {
    low = X::add16(low, other.low);
    high = X::add16(high, other.high);
  }
};

// `fixed` taps, known to the compiler, or any number where it is 0.
template <typename X, int fixed>
struct Vertical {
  static void run(int, const uint8_t *const *rows, const int16_t *weights, int samples, int16_t *out) {
    typename X::Vector weight[fixed];
    const uint8_t *row[fixed];
    for (int tap = 0; tap < fixed; ++tap) {
      weight[tap] = X::words16(weights[tap]);
      row[tap] = rows[tap];
    }
    for (int x = 0; x < samples; x += 2 * X::kWords) {
      Weighed<X> sum(row[0] + x, weight[0]);
      for (int tap = 1; tap < fixed; ++tap) sum += Weighed<X>(row[tap] + x, weight[tap]);
      X::store_in_order(out + x, sum.low, sum.high);
    }
  }
};

template <typename X>
struct Vertical<X, 0> {
  static void run(int taps, const uint8_t *const *rows, const int16_t *weights, int samples, int16_t *out) {
    for (int x = 0; x < samples; x += 2 * X::kWords) {
      Weighed<X> sum(rows[0] + x, X::words16(weights[0]));
      for (int tap = 1; tap < taps; ++tap) sum += Weighed<X>(rows[tap] + x, X::words16(weights[tap]));
      X::store_in_order(out + x, sum.low, sum.high);
    }
  }
};

template <typename X>
void vertical(const uint8_t *const *rows, const int16_t *weights, int taps, int samples, int16_t *out) {
  with_taps<Vertical, X>(taps, rows, weights, samples, out);
}

// Eight rows of words to columns, in each lane.
template <typename X>
inline void transpose(const typename X::Vector *row, typename X::Vector *column) {
  using V = typename X::Vector;
  const auto four = [&](V rows01, V rows23, V rows45, V rows67, V *out) {
    const V upper01 = X::low32(rows01, rows23), upper23 = X::high32(rows01, rows23);
    const V lower01 = X::low32(rows45, rows67), lower23 = X::high32(rows45, rows67);
    out[0] = X::low64(upper01, lower01);
    out[1] = X::high64(upper01, lower01);
    out[2] = X::low64(upper23, lower23);
    out[3] = X::high64(upper23, lower23);
  };
  four(X::low16(row[0], row[1]), X::low16(row[2], row[3]), X::low16(row[4], row[5]), X::low16(row[6], row[7]),
       column);
  four(X::high16(row[0], row[1]), X::high16(row[2], row[3]), X::high16(row[4], row[5]), X::high16(row[6], row[7]),
       column + 4);
}

template <typename X>
void turn(const int16_t *rows, int samples, int stride, int16_t *columns) {
  for (int x = 0; x < samples; x += 8) {
    for (int part = 0; part < X::kRows; part += X::kWords) {
      typename X::Vector row[8], column[8];
      const int16_t *at = rows + static_cast<ptrdiff_t>(part) * stride + x;
      for (int y = 0; y < 8; ++y, at += stride) row[y] = X::load_apart(at, 8 * static_cast<ptrdiff_t>(stride));
      transpose<X>(row, column);
      for (int i = 0; i < 8; ++i) X::store(columns + static_cast<ptrdiff_t>(x + i) * X::kRows + part, column[i]);
    }
  }
}

template <typename X, int fixed>
struct Horizontal {
  static void run(int taps, const int16_t *columns, const int32_t *firsts, const uint32_t *weights, int outputs,
                  int16_t *out) {
    constexpr int kVectors = X::kRows / X::kWords;
    const int count = fixed != 0 ? fixed : taps;
    for (int output = 0; output < outputs; ++output, out += 3 * X::kRows, weights += count) {
      const int16_t *column = columns + static_cast<ptrdiff_t>(firsts[output]) * X::kRows;
      typename X::Vector sums[kVectors];
      for (int i = 0; i < kVectors; ++i) {
        sums[i] = X::mulhrs(X::load(column + i * X::kWords), X::words32(static_cast<int32_t>(weights[0])));
      }
      for (int tap = 1; tap < count; ++tap) {
        const auto weight = X::words32(static_cast<int32_t>(weights[tap]));
        for (int i = 0; i < kVectors; ++i) {
          sums[i] = X::add16(sums[i], X::mulhrs(X::load(column + tap * X::kRows + i * X::kWords), weight));
        }
      }
      for (int i = 0; i < kVectors; ++i) X::store(out + i * X::kWords, sums[i]);
    }
  }
};

template <typename X>
void horizontal(const int16_t *columns, const int32_t *firsts, const uint32_t *weights, int taps, int outputs,
                int16_t *out) {
  with_taps<Horizontal, X>(taps, columns, firsts, weights, outputs, out);
}

template <typename X>
void ycc_to_rgb(int16_t *columns, int pixels) {
  for (int i = 0; i < pixels; ++i, columns += 3 * X::kRows) {
    for (int part = 0; part < X::kRows; part += X::kWords) {
      int16_t *const red = columns + part, *const green = red + X::kRows, *const blue = green + X::kRows;
      const auto y = X::load(red), cb = X::load(green), cr = X::load(blue);
      const auto by = [](auto chroma, int factor) { return X::mulhrs(chroma, X::words16(factor)); };
      X::store(red, X::adds16(y, X::adds16(cr, by(cr, kRedCr))));
      X::store(green, X::subs16(y, X::adds16(by(cb, kGreenCb), by(cr, kGreenCr))));
      X::store(blue, X::adds16(y, X::adds16(cb, by(cb, kBlueCb))));
    }
  }
}

// Two pixels beside each other: R, G and B in whole levels less 128, and what YUV 4:2:0 is made of.
template <typename X>
struct PixelPair {
  using V = typename X::Vector;
  V left[3], right[3];

  explicit PixelPair(const int16_t *columns) {
    for (int i = 0; i < 3; ++i) {
      left[i] = level(columns + i * X::kRows);
      right[i] = level(columns + (3 + i) * X::kRows);
    }
  }
  static V level(const int16_t *words) {
    const V rounded = X::mulhrs(X::load(words), X::words16(1 << (15 - kColumnBits)));
    const V room = X::words16(0x7FFF - 127);  // to the end of 16 bits, above 127 as below -128
    return X::adds16(X::subs16(X::subs16(X::adds16(rounded, room), room), room), room);
  }
  static V luma(const V *rgb) {
    const V red_green = X::pairs(kYRed, kHalfYGreen), green_blue = X::pairs(kHalfYGreen, kYBlue);
    const auto weigh = [&](V first, V second) {
      const V sum = X::add32(X::madd(first, red_green), X::madd(second, green_blue));
      return X::template down32<16>(X::add32(sum, X::words32(1 << 15)));
    };
    return X::template up16<kColumnBits>(X::pack32(weigh(X::low16(rgb[0], rgb[1]), X::low16(rgb[1], rgb[2])),
                                                   weigh(X::high16(rgb[0], rgb[1]), X::high16(rgb[1], rgb[2]))));
  }
  // Of rows two by two, in 32 bits; `doubled` is the channel whose weight is a half.
  V chroma(int doubled, int first, int first_weight, int second, int second_weight) const {
    const auto sum = [&](int i) { return X::add16(left[i], right[i]); };
    const V half = X::madd(X::template up16<1>(sum(doubled)), X::words16(kHalfChroma));
    const V others = X::add32(X::madd(sum(first), X::words16(first_weight)), X::madd(sum(second), X::words16(second_weight)));
    return X::template down32<kChromaShift>(X::add32(X::add32(half, others), X::words32(kChromaRounding)));
  }
  V cb() const { return chroma(2, 0, kCbRed, 1, kCbGreen); }
  V cr() const { return chroma(0, 1, kCrGreen, 2, kCrBlue); }
};

template <typename X>
void rgb_to_yuv420(const int16_t *columns, int pixels, int16_t *y, int16_t *cb, int16_t *cr) {
  const auto store_two = [](int16_t *at, typename X::Vector first, typename X::Vector second) {
    X::store(at, X::template up16<kColumnBits>(X::pack32(first, second)));
  };
  for (int column = 0; column < chroma_columns(pixels); ++column) {
    for (int part = 0; part < X::kRows; part += X::kWords) {
      const auto pair = [&](int place) {
        const PixelPair<X> made(columns + ptrdiff_t{6} * X::kRows * place + part);
        int16_t *const two = y + ptrdiff_t{2} * X::kRows * place + part;
        X::store(two, made.luma(made.left));
        X::store(two + X::kRows, made.luma(made.right));
        return made;
      };
      const PixelPair<X> own = pair(column), other = pair(column + chroma_distance(pixels));
      store_two(cb + column * X::kRows + part, own.cb(), other.cb());
      store_two(cr + column * X::kRows + part, own.cr(), other.cr());
    }
  }
}

// 16 columns to rows of bytes, from byte x of the rows on.
template <typename X>
inline void finish_block(const int16_t *columns, int x, uint8_t *const *rows) {
  using V = typename X::Vector;
  const V one = X::words16(1 << (15 - kColumnBits)), sign = X::words32(static_cast<int32_t>(0x80808080U));
  for (int part = 0; part < X::kRows; part += X::kWords) {
    const auto round = [&](int column) { return X::mulhrs(X::load(columns + column * X::kRows + part), one); };
    // Eight rows of two columns, eight apart, in each lane.
    V apart[8];
    for (int i = 0; i < 8; ++i) apart[i] = X::flip_bits(X::pack16(round(i), round(i + 8)), sign);
    V left[4], right[4];
    for (int i = 0; i < 4; ++i) {
      left[i] = X::low8(apart[2 * i], apart[2 * i + 1]);
      right[i] = X::high8(apart[2 * i], apart[2 * i + 1]);
    }
    const auto four_rows = [&](V left03, V left47, V right03, V right47, int first) {
      const V left01 = X::low32(left03, left47), left23 = X::high32(left03, left47);
      const V right01 = X::low32(right03, right47), right23 = X::high32(right03, right47);
      const auto store = [&](int row, V value) { X::store_apart(rows + row, x, value); };
      store(first, X::low64(left01, right01));
      store(first + 1, X::high64(left01, right01));
      store(first + 2, X::low64(left23, right23));
      store(first + 3, X::high64(left23, right23));
    };
    four_rows(X::low16(left[0], left[1]), X::low16(left[2], left[3]), X::low16(right[0], right[1]),
              X::low16(right[2], right[3]), part);
    four_rows(X::high16(left[0], left[1]), X::high16(left[2], left[3]), X::high16(right[0], right[1]),
              X::high16(right[2], right[3]), part + 4);
  }
}

template <typename X>
void finish(const int16_t *columns, int count, uint8_t *const *rows) {
  if (count < 16) {
    plain::finish(columns, X::kRows, count, rows);
    return;
  }
  for (int from = 0; from < count; from += 16) {
    const int x = from < count - 16 ? from : count - 16;  // the last block overlaps with the one before
    finish_block<X>(columns + static_cast<ptrdiff_t>(x) * X::kRows, x, rows);
  }
}

template <typename X>
constexpr Level kVectorLevel = {X::kRows, vertical<X>, turn<X>, horizontal<X>, ycc_to_rgb<X>, rgb_to_yuv420<X>,
                                     finish<X>};

}  // namespace feeder
