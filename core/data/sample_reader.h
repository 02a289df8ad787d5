// Reads data sample by sample: JSONL, one JSON object a line, or a list of objects ("[{...},
// ...]"), which a file's first character says; packed or not; of one file or of several. Of
// documents, a file whose name ends with .txt (or this and .gz or .zst) is one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/unpacked_file.h"

namespace shoal::worker {

// Passes blank lines over. Samples have bounded length. Not thread-safe.
class SampleReader {
 public:
  static constexpr size_t kMaxSampleBytes = size_t{32} << 20;

  // `input` as ListDataFiles has it.
  static absl::StatusOr<std::unique_ptr<SampleReader>> Open(const std::string& input,
                                                            bool documents = false);

  // Returns the next sample's JSON, unchecked, or nullopt at the end. Valid until the next call.
  absl::StatusOr<std::optional<std::string_view>> Next();
  // Whether what was last returned is the text of a document, and no JSON.
  bool is_text() const { return form_ == Form::kText; }

  // "FILE:LINE" of the sample last returned, where it begins.
  std::string where() const;
  // Of the files as they lie on the disk; what was returned lies within.
  int64_t bytes_read() const { return bytes_before_ + (file_ ? file_->bytes_read() : 0); }
  int64_t bytes_total() const { return bytes_total_; }

 private:
  enum class Form { kLines, kList, kText };

  SampleReader(std::vector<std::string> files, bool documents)
      : files_(std::move(files)), documents_(documents) {}
  const std::string& path() const { return files_[at_]; }
  absl::Status BeginFile();
  absl::StatusOr<bool> Fill();
  absl::StatusOr<std::optional<char>> NextVisible();
  absl::StatusOr<size_t> EndOfElement();
  absl::StatusOr<std::optional<std::string_view>> NextLine();
  absl::StatusOr<std::optional<std::string_view>> NextElement();
  absl::StatusOr<std::optional<std::string_view>> WholeText();

  const std::vector<std::string> files_;
  const bool documents_;
  size_t at_ = 0;                       // of files_
  std::unique_ptr<UnpackedFile> file_;  // null before the first and after the last
  Form form_ = Form::kLines;            // of the file
  bool first_ = false;                  // no element of it, if it is a list or a text, was read
  std::string buffer_;
  size_t begin_ = 0;  // start of what is not yet returned, in buffer_
  bool at_end_ = false;
  int64_t line_ = 0;         // the one that is read
  int64_t sample_line_ = 0;  // where the last sample begins
  int64_t bytes_before_ = 0;
  int64_t bytes_total_ = 0;
};

}  // namespace shoal::worker
