// SPDX-License-Identifier: Apache-2.0
// One job at a time writes into a run's folder. <run>/lock names the process that does; it is touched every few seconds
// while that process lives, so that other hosts see it live. Works on any file system that the hosts share.
#pragma once
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace xylem {

struct RunLockOptions {
  double beat = 10;      // seconds between two touches
  double patience = 90;  // a lock of another host that was not touched for so long is left over; network file systems
                         // show a touch after a minute at worst
};

class RunLock {
 public:
  // Makes the folder if need be. A lock whose process is gone is taken over: at once where the process was of this
  // host, else after watching it for `patience`. Throws, naming the process and the file, if another job has the run.
  explicit RunLock(const std::string& folder, const RunLockOptions& options = {});
  ~RunLock();
  RunLock(const RunLock&) = delete;

  const std::string& note() const { return note_; }  // whose lock was taken over, or ""

 private:
  bool mine() const;
  void keep_alive(double beat);

  std::string path_, text_, note_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread heart_;
};

}  // namespace xylem
