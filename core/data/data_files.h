// The files that one name of data stands for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace shoal::worker {

// Whether a file of that name is one document: it ends with .txt, or this and .gz or .zst.
bool IsTextName(std::string_view path);

// `input` is a file; a folder, which stands for all files in it whose name ends with .jsonl or
// .json (for `documents` also .txt), or one of these and .gz or .zst; or a pattern as a shell's
// (data/part-*.jsonl). In the order of names, at least one; each can be read. NotFound if there is
// none.
absl::StatusOr<std::vector<std::string>> ListDataFiles(const std::string& input,
                                                       bool documents = false);

// Returns a text that is another one when one of these files is, by path, size or time of change.
absl::StatusOr<std::string> VersionOf(const std::vector<std::string>& files);

}  // namespace shoal::worker
