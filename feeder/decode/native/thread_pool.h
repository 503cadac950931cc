// A fixed number of decoding threads that concurrent batches share. Knows no Python.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "jpeg_crop.h"

namespace feeder {

// What became of one request.
struct Outcome {
  feeder_status status;
  char reason[FEEDER_REASON_BYTES];
};

enum class Ran { kDone, kClosed, kForked };

// Batches are served in the order that they came, image by image, by whichever thread is free. Patient ones are served
// when no other is waiting, and one of their images after each kPatience others, so that they get on. With one thread
// the calls take turns on the threads that make them. All members may be called from any thread.
class ThreadPool {
 public:
  // Closes the pool; in a forked child forgets it.
  struct Delete {
    void operator()(ThreadPool *pool) const;
  };

  // Throws std::bad_alloc or std::system_error.
  ThreadPool(size_t threads, const feeder_limits &limits, feeder_level level);
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;
  ~ThreadPool();

  // A patient image is decoded whole, which is little more than one of those that it follows.
  static constexpr size_t kPatience = 15;

  // Carries out `count` requests; outcomes has a place for each. Returns when all are done; kDone unless the pool is
  // closed or belongs to the process that this one was forked from, and then nothing is of use.
  Ran run(const feeder_request *requests, Outcome *outcomes, size_t count, bool patient = false);

  // Lets calls in progress finish, ends the threads, refuses further calls. May be called again.
  void close();

 private:
  struct Batch {
    const feeder_request *requests;
    Outcome *outcomes;
    size_t count, next, done;
    std::condition_variable finished;
  };
  struct Free {
    void operator()(feeder_decoder *decoder) const { feeder_decoder_free(decoder); }
  };
  using DecoderPtr = std::unique_ptr<feeder_decoder, Free>;

  using Batches = std::deque<Batch *>;

  Ran run_here(const feeder_request *requests, Outcome *outcomes, size_t count);
  Ran run_here_patiently(const feeder_request *requests, Outcome *outcomes, size_t count);
  Batches *next_batches();
  void serve(feeder_decoder *decoder);
  void join();

  const pid_t owner_;
  std::mutex mutex_;
  std::mutex gate_;  // of passed_ and waiting_, where there is one thread
  std::condition_variable work_;
  Batches batches_, patient_;  // with requests that no thread has taken yet
  size_t passed_ = 0;          // images that were taken before a patient one
  size_t waiting_ = 0;         // calls that want to decode on their own thread
  bool closed_ = false;
  std::vector<DecoderPtr> decoders_;
  std::vector<std::thread> threads_;  // empty where one decoder is all
};

}  // namespace feeder
