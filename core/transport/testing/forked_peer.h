// A second process of a test: forked from it, exchanging strings over a pair of pipes.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

namespace shoal::transport {

// The test, as the forked process sees it.
class ForkedChannel {
 public:
  // Failing ends the test: the other side must be there.
  void Send(const std::string& text) const;
  std::string Receive() const;

 private:
  friend class ForkedPeer;
  int read_fd_ = -1;
  int write_fd_ = -1;
};

class ForkedPeer {
 public:
  // Forks before this process has threads. The new process only runs `run`; it is killed when this
  // object is destroyed, and ends by itself after a minute if the test died.
  explicit ForkedPeer(const std::function<void(const ForkedChannel&)>& run);
  ForkedPeer(const ForkedPeer&) = delete;
  ForkedPeer& operator=(const ForkedPeer&) = delete;
  ~ForkedPeer();

  const ForkedChannel& channel() const { return here_; }
  void Signal(int signal) const;
  // Returns when the process is gone.
  void Kill();

 private:
  ForkedChannel here_;
  ForkedChannel there_;
  pid_t pid_ = -1;
};

}  // namespace shoal::transport
