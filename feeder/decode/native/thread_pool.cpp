#include "thread_pool.h"

#include <csignal>
#include <new>

#include <pthread.h>
#include <unistd.h>

namespace feeder {

ThreadPool::ThreadPool(size_t threads, const feeder_limits &limits, feeder_level level) : owner_(getpid()) {
  for (size_t i = 0; i < threads; ++i) {
    decoders_.emplace_back(feeder_decoder_new(&limits, level));
    if (decoders_.back() == nullptr) throw std::bad_alloc();
  }
  if (threads == 1) return;
  // Signals are the business of the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    for (const DecoderPtr &decoder : decoders_) {
      threads_.emplace_back(&ThreadPool::serve, this, decoder.get());
      pthread_setname_np(threads_.back().native_handle(), "feeder-decode");
    }
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    join();
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ThreadPool::~ThreadPool() { join(); }

void ThreadPool::Delete::operator()(ThreadPool *pool) const {
  // After a fork the threads are gone, but the condition variable still counts them as waiting: to join them, or to
  // destroy it, would wait for ever. So the child leaves the pool where it is.
  if (pool->owner_ == getpid()) delete pool;
}

Ran ThreadPool::run(const feeder_request *requests, Outcome *outcomes, size_t count, bool patient) {
  if (owner_ != getpid()) return Ran::kForked;
  if (decoders_.size() == 1) {
    return patient ? run_here_patiently(requests, outcomes, count) : run_here(requests, outcomes, count);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (closed_) return Ran::kClosed;
  if (count == 0) return Ran::kDone;
  Batch batch = {requests, outcomes, count, 0, 0, {}};
  (patient ? patient_ : batches_).push_back(&batch);
  if (count == 1) {
    work_.notify_one();
  } else {
    work_.notify_all();
  }
  batch.finished.wait(lock, [&batch] { return batch.done == batch.count; });
  return Ran::kDone;
}

// The mutex is the only thread's turn; who waits for it is counted, for the patient.
Ran ThreadPool::run_here(const feeder_request *requests, Outcome *outcomes, size_t count) {
  {
    const std::lock_guard<std::mutex> lock(gate_);
    ++waiting_;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!closed_) {
    for (size_t i = 0; i < count; ++i) {
      outcomes[i].status = feeder_decode(decoders_[0].get(), &requests[i], outcomes[i].reason);
    }
  }
  const std::lock_guard<std::mutex> gate(gate_);
  --waiting_;
  passed_ += count;
  work_.notify_all();
  return closed_ ? Ran::kClosed : Ran::kDone;
}

Ran ThreadPool::run_here_patiently(const feeder_request *requests, Outcome *outcomes, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    {
      std::unique_lock<std::mutex> gate(gate_);
      work_.wait(gate, [this] { return waiting_ == 0 || passed_ >= kPatience; });
      passed_ = 0;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return Ran::kClosed;
    outcomes[i].status = feeder_decode(decoders_[0].get(), &requests[i], outcomes[i].reason);
  }
  return Ran::kDone;
}

// Whose image is next; nullptr: nobody's.
ThreadPool::Batches *ThreadPool::next_batches() {
  if (patient_.empty()) return batches_.empty() ? nullptr : &batches_;
  if (batches_.empty() || passed_ == kPatience) {
    passed_ = 0;
    return &patient_;
  }
  ++passed_;
  return &batches_;
}

void ThreadPool::close() {
  if (owner_ != getpid()) return;
  join();
}

void ThreadPool::join() {
  std::vector<std::thread> ending;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    ending.swap(threads_);
    work_.notify_all();
  }
  for (std::thread &thread : ending) thread.join();
}

void ThreadPool::serve(feeder_decoder *decoder) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return closed_ || !batches_.empty() || !patient_.empty(); });
    Batches *batches = next_batches();
    if (batches == nullptr) return;
    Batch *batch = batches->front();
    const size_t index = batch->next++;
    if (batch->next == batch->count) batches->pop_front();
    lock.unlock();
    Outcome *outcome = &batch->outcomes[index];
    outcome->status = feeder_decode(decoder, &batch->requests[index], outcome->reason);
    lock.lock();
    // Notified under the lock: the batch is gone as soon as its caller wakes.
    if (++batch->done == batch->count) batch->finished.notify_one();
  }
}

}  // namespace feeder
