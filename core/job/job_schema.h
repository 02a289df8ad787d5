// The keys of a job file, as proto/job.proto has them: what may stand there, and how single values
// are read and printed. Reader, printer and documentation go by this. Internal to core/job.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "core/job/job.h"
#include "proto/job.pb.h"
#include "yaml-cpp/yaml.h"

namespace shoal::plan {

using google::protobuf::FieldDescriptor;
using Section = google::protobuf::Message;  // some keys, and sections of its own

struct KeyField {
  std::string path;  // "train.learning_rate"
  const FieldDescriptor* field;
};

// In the order of the documentation.
const std::vector<KeyField>& KeyFields();

// Holds keys; else it is one.
bool IsSection(const FieldDescriptor& field);
const proto::Key& OptionsOf(const FieldDescriptor& field);
// "number from 0 to 1", "one of auto, fp32, bf16", ...
std::string TypeOf(const FieldDescriptor& field);

// What holds the key of that path; made where it is not there.
Section& SectionOf(Section& root, std::string_view path);

// Calls `visit` for each key that has a value, with the section that holds it.
using KeyVisitor =
    std::function<void(const std::string& path, const Section& section, const FieldDescriptor&)>;
void ForEachValue(const Section& section, const KeyVisitor& visit, const std::string& prefix = "");

// Sets the field. An error is what comes after "<path> ", e.g. "is 'x', expected an integer".
absl::Status ReadValue(const YAML::Node& node, Section& section, const FieldDescriptor& field);
// What ReadValue reads back to the same value.
YAML::Node NodeOf(const Section& section, const FieldDescriptor& field);
// The same as flow text.
std::string PrintValue(const Section& section, const FieldDescriptor& field);

// The job that a message says, but for the number of processes, which CheckJob settles.
Job JobOf(const proto::Job& message);

// Where a key's value comes from.
struct JobSource {
  enum Level { kFile, kOverride };
  Level level = kFile;
  std::string where;  // "job.yaml:7" or "--set a.b=c"
};
using JobSources = std::map<std::string, JobSource>;  // by path, of the keys that were given

// Settles the form of the cluster, of which `cluster` is what was given, and refuses
// contradictions, naming both keys.
absl::Status CheckJob(Job& job, const proto::ClusterOptions& cluster, const JobSources& sources,
                      const std::string& file_name);

}  // namespace shoal::plan
