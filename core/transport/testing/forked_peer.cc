#include "core/transport/testing/forked_peer.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

#include "core/base/check.h"

namespace shoal::transport {

void ForkedChannel::Send(const std::string& text) const {
  const auto size = static_cast<uint32_t>(text.size());
  SHOAL_CHECK(write(write_fd_, &size, sizeof size) == sizeof size);
  SHOAL_CHECK(write(write_fd_, text.data(), size) == static_cast<ssize_t>(size));
}

std::string ForkedChannel::Receive() const {
  uint32_t size = 0;
  SHOAL_CHECK(read(read_fd_, &size, sizeof size) == sizeof size);
  std::string text(size, '\0');
  SHOAL_CHECK(read(read_fd_, text.data(), size) == static_cast<ssize_t>(size));
  return text;
}

ForkedPeer::ForkedPeer(const std::function<void(const ForkedChannel&)>& run) {
  int to_peer[2];
  int from_peer[2];
  SHOAL_CHECK(pipe(to_peer) == 0 && pipe(from_peer) == 0);
  here_.read_fd_ = from_peer[0];
  here_.write_fd_ = to_peer[1];
  there_.read_fd_ = to_peer[0];
  there_.write_fd_ = from_peer[1];
  pid_ = fork();
  SHOAL_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    alarm(60);
    run(there_);
    _exit(0);
  }
}

ForkedPeer::~ForkedPeer() {
  Kill();
  for (const int fd : {here_.read_fd_, here_.write_fd_, there_.read_fd_, there_.write_fd_}) {
    close(fd);
  }
}

void ForkedPeer::Signal(int signal) const { kill(pid_, signal); }

void ForkedPeer::Kill() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
}

}  // namespace shoal::transport
