// The buffer of a stream that prints to a file descriptor, for a command that has to act on a
// signal while nobody reads what it prints (Ctrl-S, a full pipe).
//
// Waits for the reader, as a write does. Once `stopping` holds it waits only while the reader takes
// something every second, and then drops lines, whole ones, until the reader is back. For one
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <streambuf>
#include <string>

#include "core/base/file.h"

namespace shoal::cli {

class Output final : public std::streambuf {
 public:
  // The descriptor stays the caller's.
  Output(int file_descriptor, std::function<bool()> stopping);
  ~Output() override;  // prints what is left

  int64_t dropped_lines() const { return dropped_lines_; }

 protected:
  int_type overflow(int_type character) override;
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int sync() override;

 private:
  void Drop(size_t printed);

  const UniqueFd own_;  // the same file, not to block; invalid where it cannot be opened again
  const int fd_;
  const std::function<bool()> stopping_;
  std::string buffer_;
  bool within_line_ = false;  // what was printed last does not end a line
  bool dropping_ = false;
  int64_t dropped_lines_ = 0;
};

}  // namespace shoal::cli
