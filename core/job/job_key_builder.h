// The table is put together here: a builder with a call per kind of value, and a function per
// section of the job file. Internal to plan/job_keys*.cc.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/job/job_keys.h"
#include "core/job/job_values.h"
#include "yaml-cpp/yaml.h"

namespace shoal::plan {

// A field of the job, by reference: [](Job& job) -> auto& { return job.train.steps; }.
template <typename T>
using Field = T& (*)(Job&);

template <typename T>
const T& Get(Field<T> field, const Job& job) {
  return field(const_cast<Job&>(job));  // a Field only selects a member
}

template <typename T>
absl::Status Assign(absl::StatusOr<T> value, T& out) {
  if (value.ok()) {
    out = *std::move(value);
  }
  return value.status();
}

template <typename E>
using Choices = std::vector<std::pair<std::string, E>>;

template <typename E>
std::string ChoiceList(const Choices<E>& choices) {
  std::string text = "one of ";
  for (size_t i = 0; i < choices.size(); ++i) {
    text += (i == 0 ? "" : ", ") + choices[i].first;
  }
  return text;
}

template <typename E>
absl::StatusOr<E> ParseChoice(const YAML::Node& node, const Choices<E>& choices) {
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ParseScalar(node, ChoiceList(choices)));
  for (const auto& [name, value] : choices) {
    if (text == name) {
      return value;
    }
  }
  return InvalidArgument("is '{}', expected {}", text.substr(0, 60), ChoiceList(choices));
}

template <typename E>
std::string PrintChoice(E value, const Choices<E>& choices) {
  const auto found = std::find_if(choices.begin(), choices.end(),
                                  [&](const auto& choice) { return choice.second == value; });
  return found->first;
}

// Builds the table: each call adds a key, in the order of the documentation.
class TableBuilder {
 public:
  TableBuilder& Add(JobKeyBinding binding) {
    table_.push_back(std::move(binding));
    return *this;
  }

  TableBuilder& Integer(std::string path, Field<int64_t> field, IntegerRange range,
                        std::string help) {
    return Add({.key = {.path = std::move(path), .type = Describe(range), .help = std::move(help)},
                .parse = [=](const YAML::Node& node,
                             Job& job) { return Assign(ParseInteger(node, range), field(job)); },
                .print = [=](const Job& job) { return std::to_string(Get(field, job)); }});
  }

  TableBuilder& Seed(std::string path, Field<uint64_t> field, std::string help) {
    return Add(
        {.key = {.path = std::move(path), .type = "integer of at least 0", .help = std::move(help)},
         .parse = [=](const YAML::Node& node,
                      Job& job) { return Assign(ParseSeed(node), field(job)); },
         .print = [=](const Job& job) { return std::to_string(Get(field, job)); }});
  }

  TableBuilder& Number(std::string path, Field<double> field, NumberRange range, std::string help) {
    return Add({.key = {.path = std::move(path), .type = Describe(range), .help = std::move(help)},
                .parse = [=](const YAML::Node& node,
                             Job& job) { return Assign(ParseNumber(node, range), field(job)); },
                .print = [=](const Job& job) { return PrintNumber(Get(field, job)); }});
  }

  TableBuilder& Boolean(std::string path, Field<bool> field, std::string help) {
    return Add({.key = {.path = std::move(path), .type = "true or false", .help = std::move(help)},
                .parse = [=](const YAML::Node& node,
                             Job& job) { return Assign(ParseBoolean(node), field(job)); },
                .print = [=](const Job& job) { return Get(field, job) ? "true" : "false"; }});
  }

  TableBuilder& Path(std::string path, Field<std::string> field, bool required, std::string help) {
    return Add({.key = {.path = std::move(path), .type = "path", .help = std::move(help)},
                .required = required,
                .is_path = true,
                .parse = [=](const YAML::Node& node,
                             Job& job) { return Assign(ParseText(node), field(job)); },
                .print = [=](const Job& job) { return QuoteYaml(Get(field, job)); }});
  }

  template <typename E>
  TableBuilder& Choice(std::string path, std::type_identity_t<Field<E>> field, Choices<E> choices,
                       std::string help) {
    return Add(
        {.key = {.path = std::move(path), .type = ChoiceList(choices), .help = std::move(help)},
         .parse = [=](const YAML::Node& node,
                      Job& job) { return Assign(ParseChoice(node, choices), field(job)); },
         .print = [=](const Job& job) { return PrintChoice(Get<E>(field, job), choices); }});
  }

  std::vector<JobKeyBinding> Build() { return std::move(table_); }

 private:
  std::vector<JobKeyBinding> table_;
};

inline constexpr int64_t kMaxThreads = 1024;

void AddDataKeys(TableBuilder& table);
void AddPlanKeys(TableBuilder& table);
void AddTrainKeys(TableBuilder& table);
void AddServiceKeys(TableBuilder& table);
void AddRdmaKeys(TableBuilder& table);
void AddClusterKeys(TableBuilder& table);
void AddPipelineKeys(TableBuilder& table);
void AddCheckpointKeys(TableBuilder& table);
void AddEmulateKeys(TableBuilder& table);

}  // namespace shoal::plan
