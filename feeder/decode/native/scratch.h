// Memory that grows and is used again, so that decoding in steady state asks the allocator for nothing.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace feeder {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch &) = delete;
  Scratch &operator=(const Scratch &) = delete;
  ~Scratch() { std::free(memory_); }

  // At least `bytes` bytes at a multiple of 64, zeroed when new; nullptr when memory is short. What was returned
  // before is no longer valid.
  void *reserve(size_t bytes) noexcept {
    if (bytes <= size_) return memory_;
    std::free(memory_);
    size_ = 0;
    const size_t rounded = (bytes + bytes / 4 + 63) / 64 * 64;
    memory_ = std::aligned_alloc(64, rounded);
    if (memory_ == nullptr) return nullptr;
    std::memset(memory_, 0, rounded);
    size_ = rounded;
    return memory_;
  }

 private:
  void *memory_ = nullptr;
  size_t size_ = 0;
};

}  // namespace feeder
