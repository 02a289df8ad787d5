#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "core/base/nearest.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/job/job.h"
#include "core/job/job_check.h"
#include "core/job/job_document.h"
#include "core/job/job_keys.h"
#include "core/job/job_values.h"
#include "yaml-cpp/yaml.h"

namespace shoal::plan {
namespace {

const JobKeyBinding* FindBinding(const std::string& path) {
  for (const JobKeyBinding& binding : JobKeyBindings()) {
    if (binding.key.path == path) {
      return &binding;
    }
  }
  return nullptr;
}

// What may stand directly under a section ("" for the top), e.g. "local" and "coordinator" under
// "cluster".
std::vector<std::string> ChildrenOf(const std::string& section) {
  const std::string prefix = section.empty() ? "" : section + ".";
  std::vector<std::string> names;
  for (const JobKeyBinding& binding : JobKeyBindings()) {
    const std::string& path = binding.key.path;
    if (path.starts_with(prefix)) {
      std::string name = path.substr(prefix.size(), path.find('.', prefix.size()) - prefix.size());
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(std::move(name));
      }
    }
  }
  return names;
}

absl::Status UnknownKey(const std::string& where, const std::string& section,
                        const std::string& name) {
  // A key that exists, but elsewhere, is more likely misplaced than misspelt.
  std::string hint = Nearest(name, ChildrenOf(section));
  for (const JobKeyBinding& binding : JobKeyBindings()) {
    if (binding.key.path.ends_with("." + name)) {
      hint = binding.key.path;
    }
  }
  return InvalidArgument("{}: unknown key '{}'{}; did you mean {}?", where, name.substr(0, 60),
                         section.empty() ? "" : " in " + section, hint);
}

class JobParser {
 public:
  explicit JobParser(std::string override_directory)
      : override_directory_(std::move(override_directory)) {}

  absl::Status ReadFile(std::string_view yaml, const std::string& file_name);
  absl::Status ReadOverride(const std::string& text);
  absl::StatusOr<Job> Finish(const std::string& file_name);

 private:
  // `location` gives the place of a node for messages.
  using Location = std::function<std::string(const YAML::Node&)>;

  absl::Status ReadSection(const YAML::Node& map, const std::string& section,
                           JobSource::Level level, const Location& location);
  absl::Status ReadKey(const std::string& path, const YAML::Node& value, const JobSource& source,
                       const Location& location);

  const std::string override_directory_;
  Job job_;
  JobSources sources_;
};

absl::Status JobParser::ReadKey(const std::string& path, const YAML::Node& value,
                                const JobSource& source, const Location& location) {
  const JobKeyBinding* binding = FindBinding(path);
  if (binding == nullptr) {
    return ReadSection(value, path, source.level, location);
  }
  if (absl::Status status = binding->parse(value, job_); !status.ok()) {
    return InvalidArgument("{}: {} {}", source.where, path, Message(status));
  }
  sources_[path] = source;
  return absl::OkStatus();
}

absl::Status JobParser::ReadSection(const YAML::Node& map, const std::string& section,
                                    JobSource::Level level, const Location& location) {
  if (map.IsNull()) {
    return absl::OkStatus();
  }
  if (!map.IsMap()) {
    return InvalidArgument("{}: {} is not a map of keys", location(map),
                           section.empty() ? "the job" : section);
  }
  const std::vector<std::string> known = ChildrenOf(section);
  std::set<std::string> seen;
  for (const auto& item : map) {
    const YAML::Node& key = item.first;
    const YAML::Node& value = item.second;
    const std::string where = location(key);
    if (!key.IsScalar()) {
      return InvalidArgument("{}: a key is not a name", where);
    }
    const std::string& name = key.Scalar();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return UnknownKey(where, section, name);
    }
    const std::string path = section.empty() ? name : section + "." + name;
    if (!seen.insert(name).second) {
      return InvalidArgument("{}: {} is given twice", where, path);
    }
    SHOAL_RETURN_IF_ERROR(ReadKey(path, value, {level, where}, location));
  }
  return absl::OkStatus();
}

absl::Status JobParser::ReadFile(std::string_view yaml, const std::string& file_name) {
  SHOAL_ASSIGN_OR_RETURN(const YAML::Node document, LoadJobDocument(yaml, file_name));
  const Location location = [&](const YAML::Node& node) {
    return fmt::format("{}:{}", file_name, std::max(node.Mark().line, 0) + 1);
  };
  return ReadSection(document, "", JobSource::kFile, location);
}

// "a.b=value", where value is YAML.
absl::Status JobParser::ReadOverride(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string where = "--set " + text.substr(0, 100);
  if (FirstInvalidUtf8(text).has_value()) {
    return InvalidArgument("a value of --set is not UTF-8");
  }
  if (equals == std::string::npos || equals == 0) {
    return InvalidArgument("{}: expected key=value, like train.steps=10", where);
  }
  const std::string path = text.substr(0, equals);
  const Location location = [&](const YAML::Node&) { return where; };
  std::string section;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    const std::vector<std::string> known = ChildrenOf(section);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return UnknownKey(where, section, name);
    }
    section += (section.empty() ? "" : ".") + name;
    begin = end + 1;
    const JobKeyBinding* binding = FindBinding(section);
    if (binding != nullptr && begin < path.size()) {
      // Below a key that is a map itself: data.fields.prompt=question.
      YAML::Node map;
      map[path.substr(begin)] = YAML::Load(text.substr(equals + 1));
      return ReadKey(section, map, {JobSource::kOverride, where}, location);
    }
  }
  const YAML::Node value = YAML::Load(text.substr(equals + 1));
  SHOAL_RETURN_IF_ERROR(ReadKey(path, value, {JobSource::kOverride, where}, location));
  return absl::OkStatus();
}

absl::StatusOr<Job> JobParser::Finish(const std::string& file_name) {
  for (const JobKeyBinding& binding : JobKeyBindings()) {
    if (binding.required && !sources_.contains(binding.key.path)) {
      return InvalidArgument("{}: {} is missing", file_name, binding.key.path);
    }
  }
  if (!override_directory_.empty()) {
    const auto rebase = [&](const std::string& path, std::string& value) {
      const auto source = sources_.find(path);
      if (source != sources_.end() && source->second.level == JobSource::kOverride) {
        value = (std::filesystem::path(override_directory_) / value).lexically_normal().string();
      }
    };
    rebase("model", job_.model);
    rebase("data.train", job_.data.train);
    rebase("checkpoint.directory", job_.checkpoint.directory);
  }
  SHOAL_RETURN_IF_ERROR(CheckJob(job_, sources_, file_name));
  return std::move(job_);
}

}  // namespace

absl::StatusOr<Job> ParseJob(std::string_view yaml, const std::string& file_name,
                             const std::vector<std::string>& overrides,
                             const std::string& override_directory) {
  JobParser parser(override_directory);
  std::string place = file_name;
  try {
    SHOAL_RETURN_IF_ERROR(parser.ReadFile(yaml, file_name));
    for (const std::string& text : overrides) {
      place = "--set " + text.substr(0, 100);
      SHOAL_RETURN_IF_ERROR(parser.ReadOverride(text));
    }
  } catch (const YAML::Exception& error) {
    const int line = std::max(error.mark.line, 0) + 1;
    return InvalidArgument("{}: not valid YAML: {}",
                           place == file_name ? fmt::format("{}:{}", place, line) : place,
                           error.msg);
  }
  return parser.Finish(file_name);
}

}  // namespace shoal::plan
