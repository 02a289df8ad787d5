#include "core/data/sample_reader.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/base/status.h"
#include "core/data/data_files.h"

namespace shoal::worker {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Where an element of a list ends, by its brackets and quotes.
class ElementEnd {
 public:
  // Whether the element ended with (kAfter) or before (kBefore) this character.
  enum class Is { kInside, kAfter, kBefore };
  Is Take(char c) {
    if (in_text_) {
      in_text_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
      return Is::kInside;
    }
    if (c == '"') {
      in_text_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (depth_ == 0 && (c == ',' || c == ']' || c == '}')) {
      return Is::kBefore;
    } else if (c == '}' || c == ']') {
      return --depth_ == 0 ? Is::kAfter : Is::kInside;
    }
    return Is::kInside;
  }

 private:
  int64_t depth_ = 0;
  bool in_text_ = false;
  bool escaped_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleReader>> SampleReader::Open(const std::string& input,
                                                                 bool documents) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<std::string> files, ListDataFiles(input, documents));
  std::unique_ptr<SampleReader> reader(new SampleReader(std::move(files), documents));
  std::error_code error;
  for (const std::string& file : reader->files_) {
    const auto bytes = std::filesystem::file_size(file, error);
    reader->bytes_total_ += error ? 0 : static_cast<int64_t>(bytes);
  }
  SHOAL_RETURN_IF_ERROR(reader->BeginFile());
  return reader;
}

absl::Status SampleReader::BeginFile() {
  SHOAL_ASSIGN_OR_RETURN(file_, UnpackedFile::Open(path()));
  buffer_.clear();
  begin_ = 0;
  at_end_ = false;
  line_ = sample_line_ = 1;
  for (bool more = true; more && buffer_.size() < kByteOrderMark.size();) {
    SHOAL_ASSIGN_OR_RETURN(more, Fill());
  }
  if (buffer_.starts_with(kByteOrderMark)) {
    begin_ = kByteOrderMark.size();
  }
  first_ = true;
  if (documents_ && IsTextName(path())) {
    form_ = Form::kText;
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(const std::optional<char> first, NextVisible());
  form_ = first == '[' ? Form::kList : Form::kLines;
  begin_ += form_ == Form::kList ? 1 : 0;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string_view>> SampleReader::Next() {
  while (file_ != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(const auto sample, form_ == Form::kText   ? WholeText()
                                              : form_ == Form::kList ? NextElement()
                                                                     : NextLine());
    if (sample.has_value()) {
      return sample;
    }
    bytes_before_ += file_->bytes_read();
    file_ = nullptr;
    if (at_ + 1 < files_.size()) {
      ++at_;
      SHOAL_RETURN_IF_ERROR(BeginFile());
    }
  }
  return std::nullopt;
}

// Appends more to the buffer, whose beginning it drops; false at the file's end.
absl::StatusOr<bool> SampleReader::Fill() {
  constexpr size_t kBlock = size_t{1} << 18;
  if (at_end_) {
    return false;
  }
  if (buffer_.size() - begin_ > kMaxSampleBytes) {
    return InvalidArgument("{}:{}: a sample of more than {} bytes; {}", path(), line_,
                           kMaxSampleBytes,
                           is_text() ? "cut the text into several files, each a document"
                                     : "is this JSONL, or a list?");
  }
  buffer_.erase(0, begin_);
  begin_ = 0;
  const size_t before = buffer_.size();
  buffer_.resize(before + kBlock);
  const absl::StatusOr<size_t> got = file_->Read(buffer_.data() + before, kBlock);
  buffer_.resize(before + got.value_or(0));
  SHOAL_RETURN_IF_ERROR(got.status());
  at_end_ = *got == 0;
  return !at_end_;
}

absl::StatusOr<std::optional<std::string_view>> SampleReader::NextLine() {
  size_t searched = 0;  // of what begins at begin_
  while (true) {
    const size_t end = buffer_.find('\n', begin_ + searched);
    if (end == std::string::npos) {
      searched = buffer_.size() - begin_;
      SHOAL_ASSIGN_OR_RETURN(const bool more, Fill());
      if (more) {
        continue;
      }
      if (begin_ == buffer_.size()) {
        return std::nullopt;
      }
    }
    const size_t stop = std::min(end, buffer_.size());
    const std::string_view line = std::string_view(buffer_).substr(begin_, stop - begin_);
    begin_ = std::min(stop + 1, buffer_.size());
    searched = 0;
    sample_line_ = line_++;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      return line;
    }
  }
}

// The next character that can be seen, which stays unread; nullopt at the file's end.
absl::StatusOr<std::optional<char>> SampleReader::NextVisible() {
  while (true) {
    for (; begin_ < buffer_.size(); ++begin_) {
      const char c = buffer_[begin_];
      if (c != ' ' && c != '\t' && c != '\r' && c != '\n') {
        return c;
      }
      line_ += c == '\n' ? 1 : 0;
    }
    SHOAL_ASSIGN_OR_RETURN(const bool more, Fill());
    if (!more) {
      return std::nullopt;
    }
  }
}

// Bytes of the element that begins at begin_.
absl::StatusOr<size_t> SampleReader::EndOfElement() {
  ElementEnd end;
  for (size_t at = 0;; ++at) {
    if (begin_ + at == buffer_.size()) {
      SHOAL_ASSIGN_OR_RETURN(const bool more, Fill());
      if (!more) {
        return at;
      }
    }
    switch (end.Take(buffer_[begin_ + at])) {
      case ElementEnd::Is::kInside:
        break;
      case ElementEnd::Is::kAfter:
        return at + 1;
      case ElementEnd::Is::kBefore:
        return at;
    }
  }
}

absl::StatusOr<std::optional<std::string_view>> SampleReader::NextElement() {
  const auto expected = [&](std::string_view what) {
    return InvalidArgument("{}:{}: the list of samples: {}", path(), line_, what);
  };
  SHOAL_ASSIGN_OR_RETURN(std::optional<char> next, NextVisible());
  if (next == ']') {
    ++begin_;
    SHOAL_ASSIGN_OR_RETURN(const std::optional<char> after, NextVisible());
    if (after.has_value()) {
      return expected("there is more after its end");
    }
    return std::nullopt;
  }
  if (!first_ && next == ',') {
    ++begin_;
    SHOAL_ASSIGN_OR_RETURN(next, NextVisible());
  } else if (!first_ && next.has_value()) {
    return expected("a comma is missing between two samples");
  }
  if (!next.has_value()) {
    return expected("it has no end; is the file cut short?");
  }
  first_ = false;
  sample_line_ = line_;
  SHOAL_ASSIGN_OR_RETURN(const size_t bytes, EndOfElement());
  const std::string_view element = std::string_view(buffer_).substr(begin_, bytes);
  begin_ += bytes;
  line_ += std::ranges::count(element, '\n');
  if (element.empty()) {
    return expected("a sample is missing before a comma or bracket");
  }
  return element;
}

absl::StatusOr<std::optional<std::string_view>> SampleReader::WholeText() {
  if (!std::exchange(first_, false)) {
    return std::nullopt;
  }
  for (bool more = true; more;) {
    SHOAL_ASSIGN_OR_RETURN(more, Fill());
  }
  return std::string_view(buffer_).substr(begin_);
}

std::string SampleReader::where() const { return fmt::format("{}:{}", path(), sample_line_); }

}  // namespace shoal::worker
