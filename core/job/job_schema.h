// The keys of a job file, from proto/job.proto: what may be written there, and how single values
// are read and printed. Used by reader, printer and documentation. Internal to core/job.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "core/job/job.h"
#include "core/job/job_sources.h"
#include "proto/job.pb.h"
#include "yaml-cpp/yaml.h"

namespace shoal::plan {

using google::protobuf::FieldDescriptor;
using Section = google::protobuf::Message;  // keys, and sections of its own

struct KeyField {
  std::string path;  // "train.learning_rate"
  const FieldDescriptor* field;
};

// In the documentation's order.
const std::vector<KeyField>& KeyFields();

// The names allowed directly under a section, e.g. "local" and "coordinator" under "cluster".
std::vector<std::string> NamesIn(const Section& section);
// The field of that name allowed there; null if there is none.
const FieldDescriptor* FieldNamed(const Section& section, const std::string& name);
// Whether the field holds keys; otherwise it is one.
bool IsSection(const FieldDescriptor& field);
const proto::Key& OptionsOf(const FieldDescriptor& field);
// "number from 0 to 1", "one of auto, fp32, bf16", ...
std::string TypeOf(const FieldDescriptor& field);

// Returns the section that holds the key of that path, created if missing.
Section& SectionOf(Section& root, std::string_view path);

// Calls `visit` for each key that has a value, with the section that holds it.
using KeyVisitor =
    std::function<void(const std::string& path, const Section& section, const FieldDescriptor&)>;
void ForEachValue(const Section& section, const KeyVisitor& visit, const std::string& prefix = "");

// Sets the field. An error is the text after "<path> ", e.g. "is 'x', expected an integer".
absl::Status ReadValue(const YAML::Node& node, Section& section, const FieldDescriptor& field);
// Returns YAML that ReadValue reads back to the same value.
YAML::Node NodeOf(const Section& section, const FieldDescriptor& field);
// Same as above, as flow text.
std::string PrintValue(const Section& section, const FieldDescriptor& field);

// Returns the message's job, except the number of processes, which CheckJob settles.
Job JobOf(const proto::Job& message);

// Settles the form of the cluster from what is said of it, and refuses contradictions, naming both
// keys.
absl::Status CheckJob(Job& job, const proto::Job& said, const JobSources& sources,
                      const std::string& file_name);

}  // namespace shoal::plan
