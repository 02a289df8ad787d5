#include "tests/support/train_run.h"

#include <sstream>

#include "core/base/file.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::testing {
namespace {

void ParseLine(const std::string& line, TrainRun& run) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_discarded() || !json.contains("event")) {
    ADD_FAILURE() << "not a JSON event: " << line;
    return;
  }
  if (json["event"] == "step") {
    run.steps.push_back({json.at("step"), json.at("loss"), json.at("grad_norm"),
                         json.at("learning_rate"), json.at("tokens"), json.at("target_tokens")});
  } else if (json["event"] == "done") {
    run.done = true;
    run.checkpoint = json.at("checkpoint");
  }
}

void ParseOutput(const std::string& output, TrainRun& run) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    ParseLine(line, run);
  }
}

}  // namespace

void MakeModel(const std::string& folder, const std::string& shape) {
  const std::string data = folder + "/train.jsonl";
  const std::string tokenizer = folder + "/tokenizer";
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"data", "synth", "--samples", "200", "--output", data},
           {"data", "tokenizer", data, "--vocabulary", "320", "--output", tokenizer},
           {"model", "init", "--shape", shape, "--tokenizer", tokenizer, "--output",
            folder + "/model"}}) {
    const ProgramResult result = RunShoal(command);
    ASSERT_EQ(result.exit_code, 0) << result.errors;
  }
}

std::vector<StepLine> ParseSteps(const std::string& output) {
  TrainRun run;
  ParseOutput(output.substr(0, output.rfind('\n') + 1),
              run);  // a line still being written does not count
  return run.steps;
}

TrainRun Train(const std::string& job_yaml, const std::vector<std::string>& arguments,
               absl::Duration timeout, const std::map<std::string, std::string>& environment) {
  const std::string job = FreshDirectory("job") + "/job.yaml";
  EXPECT_TRUE(WriteFileAtomically(job, job_yaml).ok());
  std::vector<std::string> command = {BinDirectory() + "/shoal", "train", job, "--json"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Program program(command, environment);
  TrainRun run;
  run.program = program.Wait(timeout);
  EXPECT_FALSE(run.program.timed_out)
      << "shoal train did not end within " << absl::FormatDuration(timeout);
  ParseOutput(run.program.output, run);
  return run;
}

}  // namespace shoal::testing
