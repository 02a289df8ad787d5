// Text that knows who wrote it: the template, or the data that it is rendered from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::jinja {

struct Origin {
  static constexpr int32_t kTemplate = 0;
  int32_t source = kTemplate;  // who wrote it: the template, or a number that the caller chose
  bool generation = false;     // rendered within {% generation %}

  bool operator==(const Origin&) const = default;
};

// UTF-8 with an origin for each byte, kept as runs of equal ones.
class Text {
 public:
  struct Run {
    size_t end = 0;  // in bytes; a run begins where the one before it ends
    Origin origin;
    bool operator==(const Run&) const = default;
  };

  Text() = default;
  explicit Text(std::string bytes, Origin origin = {});

  const std::string& str() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<Run>& runs() const { return runs_; }
  size_t memory() const { return bytes_.size() + runs_.size() * sizeof(Run); }
  Origin OriginAt(size_t byte) const;  // `byte` lies within

  void Append(std::string_view bytes, Origin origin = {});
  void Append(const Text& text) { AppendPart(text, 0, text.size()); }
  // Appends bytes [begin, end) of `text`, which may not be this one.
  void AppendPart(const Text& text, size_t begin, size_t end);
  Text Part(size_t begin, size_t end) const;
  // Marks all of it as rendered within {% generation %}.
  void MarkGeneration();

 private:
  size_t RunAt(size_t byte) const;
  std::string bytes_;
  std::vector<Run> runs_;
};

}  // namespace shoal::jinja
