// Samples in JSONL, one JSON object per line, in one of three forms:
//
//   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
//   {"prompt": "...", "completion": "..."}   the same as a user's and an assistant's message
//   {"input_ids": [...], "labels": [...]}    as in Hugging Face: equally long, -100 where no
//                                            loss is taken, NOT shifted
//
// Any of them may have "answer": "...", which `shoal eval` compares with what the model says.
// plan::DataOptions::fields gives a file's own names for these fields. Other fields are ignored.
// Errors are reported as "FILE:LINE: ...".
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/file.h"
#include "core/data/chat_template.h"

namespace shoal::worker {

struct JsonlSample {
  std::vector<ChatMessage> messages;  // the first two forms
  std::vector<int32_t> input_ids;     // the third form
  std::vector<int32_t> labels;        // as in the file: labels[i] is input_ids[i] or -100
  std::optional<std::string> answer;
};

struct JsonlOptions {
  std::map<std::string, std::string> fields;  // our name -> the file's
  int64_t vocabulary = INT32_MAX;             // all ids are below it
};

// InvalidArgument names a key of `fields` that is not one of ours.
absl::Status CheckFields(const std::map<std::string, std::string>& fields);

// Parses one line, with `where` as its "FILE:LINE". Thread-safe.
absl::StatusOr<JsonlSample> ParseJsonlLine(std::string_view line, const JsonlOptions& options,
                                           std::string_view where);

// Reads a file line by line, skipping blank lines. Lines have bounded length.
class JsonlReader {
 public:
  static constexpr size_t kMaxLineBytes = size_t{32} << 20;

  static absl::StatusOr<std::unique_ptr<JsonlReader>> Open(const std::string& path);

  // Returns the next line, or nullopt at the end. Valid until the next call.
  absl::StatusOr<std::optional<std::string_view>> Next();

  // "FILE:LINE" of the line last returned.
  std::string where() const;
  int64_t bytes_read() const { return bytes_read_; }  // up to the end of the line last returned
  int64_t bytes_total() const { return bytes_total_; }

 private:
  explicit JsonlReader(std::string path) : path_(std::move(path)) {}
  absl::StatusOr<bool> Fill();

  std::string path_;
  UniqueFd fd_;
  std::string buffer_;
  size_t begin_ = 0;  // start of what is not yet returned, in buffer_
  bool at_end_ = false;
  int64_t line_ = 0;
  int64_t bytes_read_ = 0;
  int64_t bytes_total_ = 0;
};

}  // namespace shoal::worker
