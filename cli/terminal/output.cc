#include "cli/terminal/output.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "fmt/format.h"

namespace shoal::cli {
namespace {

constexpr size_t kBufferBytes = 16 << 10;
constexpr int kLookMs = 50;        // how soon a wait sees that it has to stop
constexpr int kPatientLooks = 20;  // one second

// A pipe that poll says has room takes as much without blocking.
constexpr size_t kPieceBytes = PIPE_BUF;

// Opens a pipe or terminal once more: not to block belongs to an open file, and the one that we got
// is shared with the shell.
UniqueFd OpenAgain(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || !(S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode))) {
    return UniqueFd();
  }
  return UniqueFd(open(fmt::format("/proc/self/fd/{}", fd).c_str(),
                       O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

Output::Output(int file_descriptor, std::function<bool()> stopping)
    : own_(OpenAgain(file_descriptor)),
      fd_(own_.valid() ? own_.get() : file_descriptor),
      stopping_(std::move(stopping)) {}

Output::~Output() { sync(); }

Output::int_type Output::overflow(int_type character) {
  if (traits_type::eq_int_type(character, traits_type::eof())) {
    return traits_type::not_eof(character);
  }
  const char byte = traits_type::to_char_type(character);
  return xsputn(&byte, 1) == 1 ? character : traits_type::eof();
}

std::streamsize Output::xsputn(const char* text, std::streamsize size) {
  buffer_.append(text, static_cast<size_t>(size));
  return buffer_.size() < kBufferBytes || sync() == 0 ? size : 0;
}

int Output::sync() {
  size_t printed = 0;
  int looks = 0;  // since the reader took something, while stopping
  while (printed < buffer_.size()) {
    pollfd poll_fd = {.fd = fd_, .events = POLLOUT, .revents = 0};
    const bool room = poll(&poll_fd, 1, dropping_ ? 0 : kLookMs) == 1;
    const size_t piece = std::min(kPieceBytes, buffer_.size() - printed);
    const ssize_t written = room ? write(fd_, buffer_.data() + printed, piece) : 0;
    if (written > 0) {
      printed += static_cast<size_t>(written);
      within_line_ = buffer_[printed - 1] != '\n';
      dropping_ = false;
      looks = 0;
    } else if (written < 0 && errno != EINTR && errno != EAGAIN) {
      buffer_.clear();
      return -1;
    } else if (dropping_ || (stopping_() && ++looks >= kPatientLooks)) {
      Drop(printed);
      return 0;
    }
  }
  buffer_.clear();
  return 0;
}

void Output::Drop(size_t printed) {
  dropping_ = true;
  // The rest of a line that is printed in part waits for the reader.
  const size_t end = within_line_ ? buffer_.find('\n', printed) : std::string::npos;
  const size_t kept = end == std::string::npos ? printed : end + 1;
  dropped_lines_ +=
      std::count(buffer_.begin() + static_cast<std::ptrdiff_t>(kept), buffer_.end(), '\n');
  buffer_ = buffer_.substr(printed, kept - printed);
}

}  // namespace shoal::cli
