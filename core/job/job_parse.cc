#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <sstream>
#include <string>

#include "core/base/nearest.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/job/job.h"
#include "core/job/job_schema.h"
#include "core/job/yaml_error.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/yaml.h"

namespace shoal::plan {
namespace {

absl::Status UnknownKey(const std::string& where, const Section& section, const std::string& path,
                        const std::string& name) {
  // A key that exists elsewhere is more likely misplaced than misspelt.
  std::string hint = DidYouMean(name, NamesIn(section));
  for (const KeyField& key : KeyFields()) {
    if (key.path.ends_with("." + name)) {
      hint = fmt::format("did you mean {}?", key.path);
    }
  }
  return InvalidArgument("{}: unknown key '{}'{}; {}", where, name.substr(0, 60),
                         path.empty() ? "" : " in " + path, hint);
}

// Notes where the last document began, and nothing of its contents.
class DocumentStart final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { mark_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

  const YAML::Mark& mark() const { return mark_; }

 private:
  YAML::Mark mark_;
};

// Null if the file is empty. InvalidArgument for text that is not UTF-8 (it could not be written
// back unchanged) and for more than one document; throws YAML::Exception for invalid YAML.
absl::StatusOr<YAML::Node> LoadJobDocument(std::string_view text, const std::string& file_name) {
  if (const auto invalid = FirstInvalidUtf8(text); invalid.has_value()) {
    return InvalidArgument("{}:{}: not UTF-8", file_name,
                           1 + std::ranges::count(text.substr(0, *invalid), '\n'));
  }
  const std::string whole(text);
  std::istringstream stream(whole);
  YAML::Parser parser(stream);
  DocumentStart first;
  DocumentStart second;
  if (parser.HandleNextDocument(first) && parser.HandleNextDocument(second)) {
    // The parser (0.7) does not advance over what can begin no document, such as a comma, and would
    // return empty documents forever.
    if (first.mark().pos == second.mark().pos) {
      return InvalidArgument("{}:{}: not valid YAML: nothing can begin with what is in column {}",
                             file_name, first.mark().line + 1, first.mark().column + 1);
    }
    return InvalidArgument("{}:{}: a second YAML document, expected one", file_name,
                           second.mark().line + 1);
  }
  return YAML::Load(whole);
}

// Says by today's keys what a release before said.
void TakeEarlier(proto::DataOptions& data) {
  if (data.has_earlier_template() && !data.has_template_()) {
    data.set_template_(std::string(Name(static_cast<Template>(data.earlier_template()))));
  }
  data.clear_earlier_template();
}

class JobParser {
 public:
  explicit JobParser(std::string override_directory)
      : override_directory_(std::move(override_directory)) {}

  absl::Status ReadFile(std::string_view yaml, const std::string& file_name);
  absl::Status ReadOverride(const std::string& text);
  absl::Status ReadMessage(const proto::Job& message, const std::string& name);
  absl::StatusOr<Job> Finish(const std::string& file_name);
  const JobSources& sources() const { return sources_; }

 private:
  // Returns the place of a node for messages.
  using Location = std::function<std::string(const YAML::Node&)>;

  absl::Status ReadSection(const YAML::Node& map, Section& section, const std::string& path,
                           JobSource::Level level, const Location& location);
  absl::Status ReadKey(const YAML::Node& value, Section& section, const FieldDescriptor& field,
                       const std::string& path, const JobSource& source, const Location& location);
  void RebasePath(Section& section, const FieldDescriptor* field) const;
  void Rebase();

  const std::string override_directory_;
  proto::Job job_;
  JobSources sources_;
};

absl::Status JobParser::ReadKey(const YAML::Node& value, Section& section,
                                const FieldDescriptor& field, const std::string& path,
                                const JobSource& source, const Location& location) {
  if (IsSection(field)) {
    return ReadSection(value, *section.GetReflection()->MutableMessage(&section, &field), path,
                       source.level, location);
  }
  if (absl::Status status = ReadValue(value, section, field); !status.ok()) {
    return InvalidArgument("{}: {} {}", source.where, path, Message(status));
  }
  sources_[path] = source;
  return absl::OkStatus();
}

absl::Status JobParser::ReadSection(const YAML::Node& map, Section& section,
                                    const std::string& path, JobSource::Level level,
                                    const Location& location) {
  if (map.IsNull()) {
    return absl::OkStatus();
  }
  if (!map.IsMap()) {
    return InvalidArgument("{}: {} is not a map of keys", location(map),
                           path.empty() ? "the job" : path);
  }
  std::set<std::string> seen;
  for (const auto& item : map) {
    const YAML::Node& key = item.first;
    const std::string where = location(key);
    if (!key.IsScalar()) {
      return InvalidArgument("{}: a key is not a name", where);
    }
    const std::string& name = key.Scalar();
    const FieldDescriptor* const field = FieldNamed(section, name);
    if (field == nullptr) {
      return UnknownKey(where, section, path, name);
    }
    const std::string key_path = path.empty() ? name : path + "." + name;
    if (!seen.insert(name).second) {
      return InvalidArgument("{}: {} is given twice", where, key_path);
    }
    SHOAL_RETURN_IF_ERROR(
        ReadKey(item.second, section, *field, key_path, {level, where}, location));
  }
  return absl::OkStatus();
}

absl::Status JobParser::ReadFile(std::string_view yaml, const std::string& file_name) {
  SHOAL_ASSIGN_OR_RETURN(const YAML::Node document, LoadJobDocument(yaml, file_name));
  const Location location = [&](const YAML::Node& node) {
    return fmt::format("{}:{}", file_name, std::max(node.Mark().line, 0) + 1);
  };
  return ReadSection(document, job_, "", JobSource::kFile, location);
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
  Section* section = &job_;
  for (size_t begin = 0;;) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    const FieldDescriptor* const field = FieldNamed(*section, name);
    if (field == nullptr) {
      return UnknownKey(where, *section, path.substr(0, begin == 0 ? 0 : begin - 1), name);
    }
    if (end == path.size() || !IsSection(*field)) {
      YAML::Node value = YAML::Load(text.substr(equals + 1));
      if (end < path.size()) {
        // Below a key that is a map itself: data.fields.prompt=question.
        YAML::Node map;
        map[path.substr(end + 1)] = value;
        value.reset(map);
      }
      return ReadKey(value, *section, *field, path.substr(0, end), {JobSource::kOverride, where},
                     location);
    }
    section = section->GetReflection()->MutableMessage(section, field);
    begin = end + 1;
  }
}

// Checks every value as one from a file.
absl::Status JobParser::ReadMessage(const proto::Job& message, const std::string& name) {
  proto::Job said = message;
  TakeEarlier(*said.mutable_data());
  absl::Status status;
  ForEachValue(said,
               [&](const std::string& path, const Section& section, const FieldDescriptor& field) {
                 if (status.ok()) {
                   status = ReadKey(NodeOf(section, field), SectionOf(job_, path), field, path,
                                    {JobSource::kFile, name}, {});
                 }
               });
  return status;
}

void JobParser::RebasePath(Section& section, const FieldDescriptor* field) const {
  const auto& reflection = *section.GetReflection();
  const auto base = std::filesystem::path(override_directory_);
  reflection.SetString(&section, field,
                       (base / reflection.GetString(section, field)).lexically_normal().string());
}

// Puts override_directory_ before paths from overrides.
void JobParser::Rebase() {
  for (const auto& [path, field] : KeyFields()) {
    const auto source = sources_.find(path);
    if (source == sources_.end() || source->second.level != JobSource::kOverride) {
      continue;
    }
    Section& section = SectionOf(job_, path);
    const proto::Key::Kind kind = OptionsOf(*field).kind();
    if (kind == proto::Key::PATH ||
        (kind == proto::Key::TEMPLATE && !TemplateNamed(job_.data().template_()).has_value())) {
      RebasePath(section, field);
    } else if (path == "data.mixture") {
      for (proto::DataSource& of_mixture : *job_.mutable_data()->mutable_mixture()) {
        RebasePath(of_mixture, of_mixture.GetDescriptor()->FindFieldByName("path"));
      }
    }
  }
}

absl::StatusOr<Job> JobParser::Finish(const std::string& file_name) {
  for (const auto& [path, field] : KeyFields()) {
    if (OptionsOf(*field).required() && !sources_.contains(path)) {
      return InvalidArgument("{}: {} is missing", file_name, path);
    }
  }
  if (!override_directory_.empty()) {
    Rebase();
  }
  Job job = JobOf(job_);
  SHOAL_RETURN_IF_ERROR(CheckJob(job, job_, sources_, file_name));
  return job;
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
    return place == file_name ? YamlError(file_name, yaml, error)
                              : InvalidArgument("{}: not valid YAML: {}", place, error.msg);
  }
  return parser.Finish(file_name);
}

std::string PlaceOf(const std::string& path, std::string_view yaml, const std::string& file_name,
                    const std::vector<std::string>& overrides) {
  JobParser parser("");
  try {
    absl::Status status = parser.ReadFile(yaml, file_name);
    for (auto text = overrides.begin(); text != overrides.end() && status.ok(); ++text) {
      status = parser.ReadOverride(*text);
    }
  } catch (const YAML::Exception&) {
    return file_name;
  }
  const auto found = parser.sources().find(path);
  return found == parser.sources().end() ? file_name : found->second.where;
}

absl::StatusOr<Job> FromMessage(const proto::Job& message, const std::string& name) {
  JobParser parser("");
  SHOAL_RETURN_IF_ERROR(parser.ReadMessage(message, name));
  return parser.Finish(name);
}

}  // namespace shoal::plan
