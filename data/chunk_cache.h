// SPDX-License-Identifier: Apache-2.0
// The most recently used chunks of a dataset, unpacked once however many threads ask for them at the same time.
#pragma once
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace xylem {

class ChunkCache {
 public:
  using Bytes = std::vector<uint8_t>;
  explicit ChunkCache(int64_t capacity) : capacity_(capacity) {}

  // The chunk `key` of `bytes` bytes, filled by load(Bytes&) if it is not there. A load that throws is tried again by
  // the next call.
  template <class Load>
  std::shared_ptr<const Bytes> get(int64_t key, size_t bytes, Load&& load) {
    std::shared_ptr<Entry> entry = find(key, bytes);
    std::lock_guard guard(entry->mutex);
    if (!entry->loaded) {
      ++misses_;
      load(entry->data);
      entry->loaded = true;
    }
    return {entry, &entry->data};
  }
  int64_t capacity() const { return capacity_; }
  int64_t misses() const { return misses_; }

 private:
  struct Entry {
    std::mutex mutex;
    bool loaded = false;
    Bytes data;
    size_t bytes = 0;
    std::list<int64_t>::iterator age;
  };

  std::shared_ptr<Entry> find(int64_t key, size_t bytes) {
    std::lock_guard guard(mutex_);
    std::shared_ptr<Entry>& entry = entries_[key];
    if (entry) {
      ages_.splice(ages_.begin(), ages_, entry->age);
      return entry;
    }
    entry = std::make_shared<Entry>();
    ages_.push_front(key);
    entry->age = ages_.begin(), entry->bytes = bytes;
    used_ += int64_t(bytes);
    std::shared_ptr<Entry> found = entry;
    while (used_ > capacity_ && ages_.size() > 1) {
      auto oldest = entries_.find(ages_.back());
      used_ -= int64_t(oldest->second->bytes);
      entries_.erase(oldest);
      ages_.pop_back();
    }
    return found;
  }

  int64_t capacity_, used_ = 0;
  std::atomic<int64_t> misses_ = 0;
  std::mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<Entry>> entries_;
  std::list<int64_t> ages_;  // newest first
};

}  // namespace xylem
