// The MCUs of a scan in the order of the data, from one on whose place in the file is known.
#pragma once

#include <cstddef>
#include <cstdint>

#include "huffman.h"
#include "scan.h"
#include "scratch.h"
#include "seek.h"

namespace feeder {

class Stream {
 public:
  // Makes MCU `mcu`, which begins at `from`, the next one; nothing is read beyond `end`. What is pointed to is kept.
  // False when memory is short.
  bool begin(const Scan *scan, const McuPlan *plan, int mcu, const SeekPoint &from, const SeekPoint &end) noexcept;

  // Lets points learn what comes; the stream began at its point number `from`.
  void teach(SeekPoints *points, int from) noexcept;

  // Number of the next MCU.
  int mcu() const { return mcu_; }

  // Drops what lies before an MCU. False for damage, and then the stream is of no more use.
  bool skip_to(int mcu) noexcept;

  // Decodes at most `most` MCUs, for which there is room. Returns how many; 0 for damage.
  int decode(int most, int16_t *coefficients, uint8_t *lasts) noexcept;

  // The same, but only begins the run, which reader() finishes.
  int begin_run(int most, int16_t *coefficients, uint8_t *lasts) noexcept;
  EntropyReader *reader() { return &reader_; }

  // Ends learning: learns the point that the next MCU begins at, if it does.
  void finish() noexcept;

  // Whether no data was used that is not there.
  bool sound() const noexcept { return reader_.position(data_) <= bits_; }

  // Whether the next MCU begins where the data was said to end, with the same predictions.
  bool at_end() noexcept;

 private:
  int next_run(int most) noexcept;
  bool arrive() noexcept;
  bool restart() noexcept;
  void learn() noexcept;
  void load(size_t byte) noexcept;
  void plan_stop() noexcept;

  const Scan *scan_ = nullptr;
  const McuPlan *plan_ = nullptr;
  SeekPoints *points_ = nullptr;
  SeekPoint end_ = {};
  int mcu_ = 0;
  int stop_ = 0;        // the MCU before which something is due
  int next_point_ = 0;  // to learn
  int next_restart_ = 0;
  size_t base_ = 0;     // byte of the file that the data begins with
  size_t behind_ = 0;   // byte of the file behind the data
  size_t bits_ = 0;     // of the data
  size_t plain_ = 0;    // bytes of the data
  uint8_t *data_ = nullptr;
  EntropyReader reader_ = {};
  Scratch bytes_;
};

}  // namespace feeder
